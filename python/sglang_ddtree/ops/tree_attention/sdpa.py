"""Tree attention through torch's fused scaled-dot-product attention, for the CPU platform.

Two to four times faster than the reference on a CPU; no soft cap and no log-sum-exp.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from sglang_ddtree.ops.tree_attention.metadata import TreeAttentionMetadata


def attend_sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, *, scale: float
) -> torch.Tensor:
    """Grouped-query attention with an additive mask.

    Args:
        q: ``[bs, N, H, D]``.
        k: ``[bs, S, Hkv, D]``.
        v: ``[bs, S, Hkv, Dv]``.
        bias: ``[bs, N, S]`` in ``q``'s dtype, 0 where visible and ``-inf`` elsewhere.

    Returns:
        ``[bs, N, H, Dv]``.
    """
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=bias[:, None],
        scale=scale,
        enable_gqa=True,
    )
    return out.transpose(1, 2)


def tree_attention_sdpa(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    metadata: TreeAttentionMetadata,
    *,
    scale: float,
    window: int = -1,
) -> torch.Tensor:
    """:func:`~sglang_ddtree.ops.tree_attention.reference.tree_attention` without LSE and soft cap.

    The caches are converted to ``q``'s dtype; rows that no node sees must be finite.
    """
    k, v = (gather_rows(cache, metadata.slots).to(q.dtype) for cache in (k_cache, v_cache))
    return attend_sdpa(q, k, v, metadata.bias(window, q.dtype), scale=scale)


def gather_rows(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """``cache[slots]`` for rows of a cache, ``[bs, S, heads, dim]``, by copying whole rows."""
    rows = cache.index_select(0, slots.flatten())
    return rows.view(*slots.shape, *cache.shape[1:])
