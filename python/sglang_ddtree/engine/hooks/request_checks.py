"""HTTP 400 for request features that trees do not serve yet.

The scheduler asks ``validate_dflash_request`` before a request is queued and aborts the request
with its message (srt/managers/scheduler.py:3144@0.5.23).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

TARGET = "sglang.srt.speculative.dflash_utils.validate_dflash_request"


def refuse_unsupported(error: str | None, req: Req, enable_overlap: bool) -> str | None:
    """Message for the first feature of ``req`` that DDTREE does not serve, else ``error``."""
    from sglang.srt.runtime_context import get_spec

    if error is not None or get_spec().speculative_algorithm != "DDTREE":
        return error
    features = unsupported_features(req)
    if not features:
        return None
    # An aborted request still goes through one prefill, which would run the client's processor.
    req.custom_logit_processor = None
    return (
        f"DDTREE does not support {', '.join(features)} yet; remove it from the request, or serve "
        "without --speculative-algorithm DDTREE."
    )


def unsupported_features(req: Req) -> list[str]:
    """Names of the request fields that would change logits in a way a tree does not apply yet."""
    params = req.sampling_params
    present = {
        "return_logprob": req.return_logprob,
        "return_hidden_states": req.return_hidden_states,
        "return_sampling_mask": req.return_sampling_mask,
        "custom_logit_processor": req.custom_logit_processor is not None,
        "json_schema": params.json_schema is not None,
        "regex": params.regex is not None,
        "ebnf": params.ebnf is not None,
        "structural_tag": params.structural_tag is not None,
        "frequency_penalty": params.frequency_penalty != 0.0,
        "presence_penalty": params.presence_penalty != 0.0,
        "repetition_penalty": params.repetition_penalty != 1.0,
        "min_new_tokens": params.min_new_tokens > 0,
        "logit_bias": bool(params.logit_bias),
        "LoRA adapters": req.lora_id is not None,
    }
    return [name for name, asked in present.items() if asked]


def register() -> None:
    HookRegistry.register(TARGET, refuse_unsupported, HookType.AFTER)
