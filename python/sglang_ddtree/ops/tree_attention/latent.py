"""Tree attention over a latent (MLA) cache: one row a token, shared by all heads.

Multi-head latent attention in its absorbed form (DeepSeek-V2, arXiv 2405.04434, section 2.1): the
up-projection of the keys is folded into the queries, and that of the values into what follows, so
that every head attends to the same row ``[latent | rope key]`` of a token, whose first part is its
value too.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from sglang_ddtree.ops.tree_attention.metadata import TreeAttentionMetadata
from sglang_ddtree.ops.tree_attention.reference import attend


def latent_tree_attention(
    q: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: TreeAttentionMetadata,
    *,
    value_dim: int,
    scale: float,
    window: int = -1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of ``N`` tree nodes a request over the paged latent prefix and their ancestors.

    One softmax covers both parts. The rows of the tree's own nodes must already be in the cache, at
    the slots that ``metadata`` names.

    Args:
        q: absorbed queries ``[bs, N, H, D]``, ``D`` the latent rank plus the rope dimension (576
            for DeepSeek-V3 and Kimi K2).
        latent_cache: ``[slots, 1, D]``, one layer of the pool; converted to ``q``'s dtype.
        value_dim: the latent rank (512): a row's first columns are its value.
        scale: of the model's un-absorbed head, not ``D ** -0.5``.
        window: sliding window in positions, ``-1`` for none.

    Returns:
        Output ``[bs, N, H, value_dim]`` in ``q``'s dtype, and the natural log-sum-exp of the scores
        ``[bs, N, H]`` in the accumulation dtype.
    """
    rows = latent_cache[metadata.slots].to(q.dtype)
    # A hidden row has probability zero, but zero times a stale NaN is not zero.
    rows = rows.masked_fill(~metadata.live[:, :, None, None], 0)
    return attend(q, rows, rows[..., :value_dim], metadata.visible(window), scale=scale)


def attend_latent_sdpa(
    q: torch.Tensor, rows: torch.Tensor, bias: torch.Tensor, *, value_dim: int, scale: float
) -> torch.Tensor:
    """Absorbed attention with an additive mask through torch's fused attention.

    Whole rows are handed over as values, and the rope part of what comes back is dropped: torch's
    fused kernel for CPUs wants keys and values of one width, and so nothing is copied.

    Args:
        q: ``[bs, N, H, D]``.
        rows: ``[bs, S, 1, D]`` in ``q``'s dtype.
        bias: ``[bs, N, S]`` in ``q``'s dtype, 0 where visible and ``-inf`` elsewhere.

    Returns:
        ``[bs, N, H, value_dim]``.
    """
    keys = rows.transpose(1, 2).expand(-1, q.shape[2], -1, -1)
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), keys, keys, attn_mask=bias[:, None], scale=scale
    )
    return out.transpose(1, 2)[..., :value_dim]


def latent_tree_attention_sdpa(
    q: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: TreeAttentionMetadata,
    *,
    value_dim: int,
    scale: float,
    window: int = -1,
) -> torch.Tensor:
    """:func:`latent_tree_attention` without LSE; rows that no node sees must be finite."""
    rows = latent_cache.index_select(0, metadata.slots.flatten()).to(q.dtype)
    rows = rows.view(*metadata.slots.shape, 1, -1)
    bias = metadata.bias(window, q.dtype)
    return attend_latent_sdpa(q, rows, bias, value_dim=value_dim, scale=scale)
