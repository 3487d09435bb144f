"""Drafter input embeddings in the drafter's own dtype.

``ModelRunner._extend_forward_kwargs`` casts every ``input_embeds`` to bfloat16
(srt/model_executor/model_runner.py:1772@0.5.23). The block embeddings of a float32 or float16
drafter then fail in its first projection.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

TARGET = "sglang.srt.model_executor.model_runner.ModelRunner._extend_forward_kwargs"


def keep_dtype(kwargs: dict[str, Any], runner: Any, forward_batch: Any, *_: Any) -> dict[str, Any]:
    """Restore the embeddings that the caller gave, for a draft runner only."""
    if runner.is_draft_worker and "input_embeds" in kwargs:
        kwargs["input_embeds"] = forward_batch.input_embeds.to(runner.dtype)
    return kwargs


def register() -> None:
    HookRegistry.register(TARGET, keep_dtype, HookType.AFTER)
