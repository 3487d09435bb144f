"""The cap of a model's logits (Gemma's ``final_logit_softcapping``) in torch."""

from __future__ import annotations

import torch


def softcap_inplace_logits(
    full_logits: torch.Tensor, final_logit_softcapping: float
) -> torch.Tensor:
    """``cap * tanh(logits / cap)``, in place: the caller keeps its own tensor.

    Args:
        full_logits: floating ``[tokens, V]``, of any strides.
        final_logit_softcapping: the cap, positive.

    Returns:
        ``full_logits``.

    Replaces the Triton launch of srt/layers/logits_processor.py:1066@0.5.23, whose torch branch is
    for SGLang's own CPU engine.
    """
    return full_logits.div_(final_logit_softcapping).tanh_().mul_(final_logit_softcapping)


def register() -> None:
    """Queue the hook that SGLang applies once all plugins are loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.kernels.ops.activation.softcap.softcap_inplace_logits",
        softcap_inplace_logits,
        HookType.REPLACE,
    )
