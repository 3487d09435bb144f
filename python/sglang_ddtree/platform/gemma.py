"""Gemma-4 with the CPU platform's attention backend."""

from __future__ import annotations

from typing import Any

ARCHITECTURE = "Gemma4ForCausalLM"


def accept_attention_backend(server_args: Any, previous: Any) -> Any:
    """Let Gemma-4 run on this platform's backend, which windows and per-layer heads don't trouble.

    SGLang asserts one of a list of backends (srt/arg_groups/model_hook.py:643@0.5.23); its own CPU
    backend, ``intel_amx``, is among them, and ours answers by that name for the length of the
    check. Wraps resolution step ``handle_model_specific_adjustments``.
    """
    from sglang.srt.arg_groups import model_hook
    from sglang.srt.arg_groups.model_override_base import model_config_of

    from sglang_ddtree.platform.cpu import ATTENTION_BACKEND

    if model_config_of(server_args).hf_config.architectures[0] != ARCHITECTURE:
        return previous(server_args)
    resolved = model_hook.attention_backends_of

    def renamed(cfg: Any) -> tuple[str, ...]:
        return tuple("intel_amx" if b == ATTENTION_BACKEND else b for b in resolved(cfg))

    model_hook.attention_backends_of = renamed
    try:
        return previous(server_args)
    finally:
        model_hook.attention_backends_of = resolved


def register() -> None:
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook

    register_resolution_hook("handle_model_specific_adjustments")(accept_attention_backend)
