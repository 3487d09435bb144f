"""Reasoning tokens of an answer, no more of them than it has tokens.

SGLang counts all tokens of a step before it cuts the answer at a stop or at its longest length
(srt/managers/scheduler_components/batch_result_processor.py:1048@0.5.23); a step of a tree can
reach far beyond. Reasoning comes first in an answer, so what was cut off was counted last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

TARGET = "sglang.srt.managers.schedule_batch.Req.update_finish_state"


def cut(_: None, req: Req, new_accepted_len: int = 1) -> None:
    """Leave out what was counted behind the end of the answer."""
    from sglang.srt.runtime_context import get_spec

    if req.finished_len is None or get_spec().speculative_algorithm != "DDTREE":
        return
    opened = req._think_start_match_len <= req.finished_len  # counted once it is complete
    req.reasoning_tokens = min(req.reasoning_tokens, req.finished_len) if opened else 0


def register() -> None:
    HookRegistry.register(TARGET, cut, HookType.AFTER)
