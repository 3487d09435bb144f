"""Linear layers over a few rows, as a tree of one request verifies them.

BLAS lays the second factor of ``x @ weight.T`` out anew in every call, on one thread. With one row
it does not, and with hundreds that is worth it. In between, the copy of the weight takes as long as
the product: put first, the weight is read as it lies, by all threads, and the few rows are copied
instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Measured with MKL on AVX2, weights streamed from memory: up to twice as fast below 5 rows on one
# thread, and below 130 on two; no faster for smaller weights.
MAX_ROWS = {"one thread": 16, "threads": 128}
MIN_WEIGHTS = 2**19

Apply = Callable[..., torch.Tensor]


def is_thin(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether ``x [rows, k]`` is few rows and ``weight [n, k]`` a large float32 matrix."""
    most = MAX_ROWS["one thread" if torch.get_num_threads() == 1 else "threads"]
    return (
        x.dim() == 2
        and 1 < x.shape[0] <= most
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and weight.dim() == 2
        and weight.numel() >= MIN_WEIGHTS
    )


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x [rows, k] @ weight.T``, weight ``[n, k]``; a contiguous ``[rows, n]``."""
    return torch.mm(weight, x.t()).t().contiguous()


def apply_linear(
    apply: Apply,
    method: Any,
    layer: Any,
    x: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Around ``UnquantizedLinearMethod.apply`` (srt/layers/quantization/unquant.py:572@0.5.23)."""
    if not is_thin(x, layer.weight):
        return apply(method, layer, x, bias)
    out = product(x, layer.weight)
    return out if bias is None else out.add_(bias)


def compute_head(
    compute: Apply,
    processor: Any,
    hidden_states: torch.Tensor,
    lm_head: Any,
    *rest: Any,
    **more: Any,
) -> torch.Tensor:
    """Around ``LogitsProcessor._compute_lm_head`` (srt/layers/logits_processor.py:1144@0.5.23)."""
    from sglang.srt.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    unquantized = isinstance(getattr(lm_head, "quant_method", None), UnquantizedEmbeddingMethod)
    adapted = hasattr(lm_head, "set_lora")
    if not unquantized or adapted or not is_thin(hidden_states, lm_head.weight):
        return compute(processor, hidden_states, lm_head, *rest, **more)
    return product(hidden_states, lm_head.weight)


def register() -> None:
    """Queue the hooks that SGLang applies once all plugins are loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in {
        "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply": apply_linear,
        "sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head": compute_head,
    }.items():
        HookRegistry.register(target, hook, HookType.AROUND)
