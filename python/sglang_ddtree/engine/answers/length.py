"""An answer is as long as was asked for, and its reasoning no longer than it.

SGLang cuts an answer that an abort ends after whole steps only
(``to_finish``, srt/managers/schedule_batch.py:2011@0.5.23), and counts all tokens of a step as
reasoning before it cuts at a stop or at the longest length (``update_reasoning_tokens``,
srt/managers/scheduler_components/batch_result_processor.py:1048@0.5.23). A step of a tree can reach
far beyond either. Reasoning comes first in an answer, so what was cut off was counted last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree.engine.options import is_running

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

TARGET = "sglang.srt.managers.schedule_batch.Req.update_finish_state"


def cut(_: None, req: Req, new_accepted_len: int = 1) -> None:
    """End the answer, and what was counted of it, where plain decoding would have ended it."""
    if not req.finished() or not is_running():
        return
    longest = req.sampling_params.max_new_tokens
    if req.finished_len is None and len(req.output_ids) > longest:
        req.finished_len = longest
    if req.finished_len is not None:
        opened = req._think_start_match_len <= req.finished_len  # counted once it is complete
        req.reasoning_tokens = min(req.reasoning_tokens, req.finished_len) if opened else 0


def register() -> None:
    HookRegistry.register(TARGET, cut, HookType.AFTER)
