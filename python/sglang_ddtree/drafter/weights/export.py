"""``drafter export``: a folder with the two files that SGLang's ``DFlashDraftModel`` loads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sglang_ddtree.dflash.checkpoint import DRAFT_VOCABULARY
from sglang_ddtree.drafter.files import write_json, write_tensors


def write_drafter(
    folder: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    *,
    dtype: torch.dtype = torch.bfloat16,
    draft_vocabulary: Tensor | None = None,
) -> None:
    """Write ``config.json`` and ``model.safetensors``.

    Args:
        draft_vocabulary: int64 token ids that the candidate head may propose; None for all. It is
            a tensor of the checkpoint, which stock DFLASH skips: its head stays full.
    """
    config = {**config, "dtype": str(dtype).removeprefix("torch.")}
    tensors = {name: weight.detach().to(dtype) for name, weight in weights.items()}
    if draft_vocabulary is not None:
        tensors[DRAFT_VOCABULARY] = draft_vocabulary.to(torch.int64)
    write_tensors(folder / "model.safetensors", tensors)
    write_json(folder / "config.json", config)
