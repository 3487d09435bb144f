"""Tree attention in plain torch: the oracle of every kernel, and the CPU platform's own op."""

from __future__ import annotations

import torch

from sglang_ddtree.ops.tree_attention.metadata import TreeAttentionMetadata


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: torch.Tensor,
    *,
    scale: float,
    soft_cap: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Grouped-query attention with a boolean mask, accumulated in at least float32.

    Args:
        q: ``[bs, N, H, D]``.
        k: ``[bs, S, Hkv, D]``; ``H`` is a multiple of ``Hkv``.
        v: ``[bs, S, Hkv, Dv]``.
        visible: bool ``[bs, N, S]``; every row sees at least one key.
        scale: multiplies ``q . k``.
        soft_cap: when positive, scores become ``soft_cap * tanh(score / soft_cap)``.

    Returns:
        Output ``[bs, N, H, Dv]`` in ``q``'s dtype, and the log-sum-exp of the scores ``[bs, N, H]``
        in the accumulation dtype.
    """
    bs, num_nodes, num_heads, _ = q.shape
    kv_heads = k.shape[2]
    acc = torch.promote_types(q.dtype, torch.float32)
    group = num_heads // kv_heads
    # Query heads that share a KV head become rows of one matrix product.
    q_rows = q.to(acc).view(bs, num_nodes, kv_heads, group, -1).permute(0, 2, 3, 1, 4)
    q_rows = q_rows.reshape(bs, kv_heads, group * num_nodes, -1)
    scores = torch.matmul(q_rows, k.to(acc).permute(0, 2, 3, 1)) * scale
    if soft_cap > 0:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    scores = scores.view(bs, kv_heads, group, num_nodes, -1)
    scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    probs = torch.exp(scores - lse[..., None]).view(bs, kv_heads, group * num_nodes, -1)
    out = torch.matmul(probs, v.to(acc).permute(0, 2, 1, 3))
    out = out.view(bs, kv_heads, group, num_nodes, -1).permute(0, 3, 1, 2, 4)
    lse = lse.permute(0, 3, 1, 2).reshape(bs, num_nodes, num_heads)
    return out.reshape(bs, num_nodes, num_heads, -1).to(q.dtype), lse


def tree_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    metadata: TreeAttentionMetadata,
    *,
    scale: float,
    window: int = -1,
    soft_cap: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of ``N`` tree nodes a request over the paged prefix and their ancestors.

    One softmax covers both parts. The rows of the tree's own nodes must already be in the cache, at
    the slots that ``metadata`` names.

    Args:
        q: ``[bs, N, H, D]``.
        k_cache: ``[slots, Hkv, D]``, one layer of the pool.
        v_cache: ``[slots, Hkv, Dv]``.
        window: sliding window in positions, ``-1`` for none.

    Returns:
        Output ``[bs, N, H, Dv]`` and log-sum-exp ``[bs, N, H]`` (see :func:`attend`).
    """
    k, v = k_cache[metadata.slots], v_cache[metadata.slots]
    # A hidden row has probability zero, but zero times a stale NaN is not zero.
    v = v.masked_fill(~metadata.live[:, :, None, None], 0)
    return attend(q, k, v, metadata.visible(window), scale=scale, soft_cap=soft_cap)
