"""No text is sent that a stop string would cut off again.

SGLang keeps a stream's text back while it ends like the beginning of a stop string
(srt/managers/schedule_batch.py:1830@0.5.23), but not where the next character is still incomplete
(the beginning of ``" <emoji>"``), not for stop expressions, which are cut off where the text holds
them literally, and not in the text of an answer without a stream, which goes out every 50 tokens
(srt/managers/scheduler_components/output_streamer.py:476@0.5.23).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree.engine.options import is_running

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

TARGET = "sglang.srt.managers.schedule_batch.Req.check_match_stop_str_prefix"
ACCEPT = (
    "sglang.srt.managers.scheduler_components.output_streamer._GenerationStreamAccumulator.accept"
)
INCOMPLETE = "\ufffd"


def keeps_back(original: Callable[[Req], bool], req: Req) -> bool:
    """Whether the text so far ends in what may be the beginning of a stop."""
    if not _is_served_by_trees():
        return original(req)
    params = req.sampling_params
    stops = [stop for stop in (*params.stop_strs, *params.stop_regex_strs) if stop]
    if not stops:
        return False
    text = req.tail_str().rstrip(INCOMPLETE)
    return any(stop in text or _ends_like_beginning(text, stop) for stop in stops)


def _ends_like_beginning(text: str, stop: str) -> bool:
    lengths = range(1, min(len(text), len(stop)) + 1)
    return any(text.endswith(stop[:length]) for length in lengths)


def accept_without_beginnings(original: Callable[..., None], streamer: Any, *, req: Req) -> None:
    """Leave the text to a later time while it ends in the beginning of a stop."""
    if (
        _is_served_by_trees()
        and not req.stream
        and not req.finished()
        and len(req.output_ids) % streamer.default_force_stream_interval == 0
        and req.check_match_stop_str_prefix()
    ):
        return
    original(streamer, req=req)


def _is_served_by_trees() -> bool:
    return is_running()


def register() -> None:
    HookRegistry.register(TARGET, keeps_back, HookType.AROUND)
    HookRegistry.register(ACCEPT, accept_without_beginnings, HookType.AROUND)
