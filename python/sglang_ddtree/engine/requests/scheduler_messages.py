"""HTTP 400 for a message that the scheduler could not decode.

The HTTP server's process writes messages without looking at the types of their fields, the
scheduler's ``recv_from_tokenizer`` with types, and it ends at the first that does not fit
(srt/managers/scheduler_components/request_receiver.py:130@0.5.23). So each is read once before it
is sent (srt/managers/tokenizer_manager.py:698@0.5.23).
"""

from __future__ import annotations

from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree.engine.options import is_running

TARGET = "sglang.srt.managers.tokenizer_manager.TokenizerManager._dispatch_to_scheduler"
AWAITED = "sglang.srt.managers.tokenizer_manager.TokenizerManager._async_dispatch_to_scheduler"


def check_message(manager: Any, obj: Any) -> None:
    """Raise ``BadRequest`` for a message that can't be written or read."""
    from sglang.srt.managers import io_struct

    from sglang_ddtree.engine.requests.bad_request import BadRequest

    if io_struct._USE_PICKLE_IPC or not is_running():
        return
    try:
        io_struct._msgpack_decoder.decode(io_struct.msgpack_encode(obj))
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRequest(f"a field of the request has a wrong type or size: {error}") from error


def register() -> None:
    HookRegistry.register(TARGET, check_message, HookType.BEFORE)
    HookRegistry.register(AWAITED, check_message, HookType.BEFORE)
