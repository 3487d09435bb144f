"""HTTP 400 for recording experts on a server that has no recorder.

SGLang's ``ExpertDistributionRecorder`` raises there and the server ends
(srt/eplb/expert_distribution.py:135@0.5.23).
"""

from __future__ import annotations

from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree.engine.options import is_running

TARGET = (
    "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"
    ".{action}_expert_distribution_record"
)
ACTIONS = ("start", "stop", "dump")


def check_recorder(manager: Any) -> None:
    from sglang.srt.runtime_context import get_exec

    from sglang_ddtree.engine.requests.bad_request import BadRequest

    if is_running() and get_exec().moe.expert_distribution_recorder_mode is None:
        raise BadRequest(
            "this server does not record experts: start it with --expert-distribution-recorder-mode"
        )


def register() -> None:
    for action in ACTIONS:
        HookRegistry.register(TARGET.format(action=action), check_recorder, HookType.BEFORE)
