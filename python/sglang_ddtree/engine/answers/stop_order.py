"""An answer ends at the token at which plain decoding would have ended it.

After a step that accepted several tokens, SGLang looks for each stop string in all of them
together, and for stop strings before stop tokens (srt/managers/schedule_batch.py:2007@0.5.23). So
the first string of the request wins over the first in the text, a string that follows the end
token over the end token, and the window searched is wider than plain decoding's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree.engine.options import is_running

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

TARGET = "sglang.srt.managers.schedule_batch.Req.update_finish_state"


def update_token_by_token(
    original: Callable[[Req, int], None], req: Req, new_accepted_len: int = 1
) -> None:
    """Ask SGLang after each of the accepted tokens, as if it were the last one so far.

    Only for requests with stop strings or expressions: token stops and the length are found in
    order already.
    """
    params = req.sampling_params
    if (
        new_accepted_len <= 1
        or req.finished()
        or req.to_finish
        or not (params.stop_strs or params.stop_regex_strs)
        or not is_running()
    ):
        original(req, new_accepted_len)
        return
    whole = req.output_ids
    try:
        for count in range(len(whole) - new_accepted_len + 1, len(whole) + 1):
            req.output_ids = whole[:count]
            original(req, 1)
            # It replaces a token that is outside the vocabulary.
            whole[count - 1] = req.output_ids[-1]
            if req.finished():
                if req.finished_len is None:
                    req.finished_len = count
                return
    finally:
        req.output_ids = whole


def register() -> None:
    HookRegistry.register(TARGET, update_token_by_token, HookType.AROUND)
