"""Keep the draft vocabulary of a drafter's checkpoint, which SGLang's loader skips."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor

from sglang_ddtree.dflash.checkpoint import DRAFT_VOCABULARY

TARGET = "sglang.srt.models.dflash.DFlashDraftModel.load_weights"
_ATTRIBUTE = "_ddtree_draft_vocabulary"


def of(model: Any) -> Tensor | None:
    """int64 ``[n]``, the only tokens that a loaded drafter proposes; ``None`` for all."""
    return getattr(model, _ATTRIBUTE, None)


def load_with_vocabulary(
    load_weights: Callable[..., Any],
    model: Any,
    weights: Iterable[tuple[str, Tensor]],
    *rest: Any,
    **more: Any,
) -> Any:
    """Take one tensor out of what is loaded; it is no parameter of the model."""

    def parameters() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights:
            if name.removeprefix("model.") == DRAFT_VOCABULARY:
                setattr(model, _ATTRIBUTE, tensor.clone())  # the loader's buffer may be reused
            else:
                yield name, tensor

    return load_weights(model, parameters(), *rest, **more)


def register() -> None:
    """Queue the hook."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, load_with_vocabulary, HookType.AROUND)
