"""A drafter read back from its folder, to be trained or evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from sglang_ddtree.dflash.checkpoint import DRAFT_VOCABULARY
from sglang_ddtree.drafter.errors import DrafterError
from sglang_ddtree.drafter.model import config as drafter_config
from sglang_ddtree.drafter.model.model import Drafter
from sglang_ddtree.drafter.model.target import weight_files


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, without the optional ``model.`` of their names.

    Raises:
        DrafterError: it has no safetensors files.
    """
    from safetensors.torch import load_file

    weights: dict[str, Tensor] = {}
    for file in weight_files(folder):
        weights |= {name.removeprefix("model."): w for name, w in load_file(file).items()}
    return weights


def load_drafter(folder: Path, config: Mapping[str, Any]) -> tuple[Drafter, Tensor | None]:
    """The drafter in float32, and its draft vocabulary where it has one.

    Args:
        config: its ``config.json``.

    Raises:
        DrafterError: it is no drafter that this package trains, or its weights don't fit.
    """
    model = Drafter(drafter_config.from_json(config))
    weights = read_weights(folder)
    vocabulary = weights.pop(DRAFT_VOCABULARY, None)
    try:
        model.load_state_dict({name: weight.float() for name, weight in weights.items()})
    except RuntimeError as error:
        raise DrafterError(f"{folder}: {error}") from error
    return model, vocabulary
