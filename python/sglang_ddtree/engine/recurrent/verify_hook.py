"""Verification of trees in GDN layers.

``GDNAttnBackend.forward_extend`` is the one way by which a verify forward reaches a GDN layer
(srt/layers/attention/linear/gdn_backend.py:947@0.5.23); its own branch convolves and walks the
draft in the order of its tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

if TYPE_CHECKING:
    import torch
    from sglang.srt.layers.attention.linear.gdn_backend import GDNAttnBackend
    from sglang.srt.layers.radix_linear_attention import RadixLinearAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

TARGET = "sglang.srt.layers.attention.linear.gdn_backend.GDNAttnBackend.forward_extend"


def verify_tree(
    original: Any,
    backend: GDNAttnBackend,
    layer: RadixLinearAttention,
    forward_batch: ForwardBatch,
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    **kwargs: Any,
) -> torch.Tensor:
    """Verify by the layers that the worker attached, prefill as SGLang does."""
    layers = getattr(backend, "tree_layers", None)
    if layers is None or not forward_batch.forward_mode.is_target_verify():
        return original(backend, layer, forward_batch, mixed_qkv, a, b, **kwargs)
    return layers.verify(layer, mixed_qkv, a, b)


def register() -> None:
    HookRegistry.register(TARGET, verify_tree, HookType.AROUND)
