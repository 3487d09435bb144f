"""HTTP 400 for request features that trees do not serve yet: the second line, in the scheduler.

Requests are refused where they come in (``requests/endpoints.py``); here is met what came
another way. The scheduler asks ``validate_dflash_request`` before a request is queued and aborts
the request with its message (srt/managers/scheduler.py:3144@0.5.23).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree.engine.options import is_running

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

TARGET = "sglang.srt.speculative.dflash_utils.validate_dflash_request"


def refuse_unsupported(error: str | None, req: Req, enable_overlap: bool) -> str | None:
    """Message for the features of ``req`` that DDTREE does not serve, else ``error``."""
    from sglang_ddtree.engine.requests import entrance, features, message

    if error is not None or not is_running():
        return error
    found = features.of_queued(req, entrance.deterministic())
    if not found:
        return None
    # An aborted request still goes through one prefill, which would run the client's processor
    # and stop at a min_p beside seeds.
    req.custom_logit_processor = None
    req.sampling_params.min_p = 0.0
    return message.unsupported(found)


def register() -> None:
    HookRegistry.register(TARGET, refuse_unsupported, HookType.AFTER)
