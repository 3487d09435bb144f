"""Torch versions of the Triton launches of SGLang's DFlash drafter."""

from __future__ import annotations

import torch
from torch.nn import functional


def table_qk_norm_rope_(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    num_q_heads: int,
    num_k_heads: int,
    head_dim: int,
    eps: float,
) -> None:
    """RMS norm and rotate-half rotary embedding of queries and keys, in place.

    SGLang takes this path for drafters in bfloat16 (srt/models/dflash.py:383@0.5.23).

    Args:
        qkv: ``[tokens, (num_q_heads + num_k_heads + value heads) * head_dim]``; values stay.
        positions: int ``[tokens]``.
        q_weight, k_weight: ``[head_dim]``.
        cos_sin_cache: ``[positions, head_dim]``, cosines and then sines.

    Follows srt/../kernels/ops/attention/table_qk_norm_rope.py:47@0.5.23, which rounds to ``qkv``'s
    dtype between norm and rotation.
    """
    cos, sin = cos_sin_cache[positions.long()].float().unsqueeze(1).chunk(2, dim=-1)
    heads = qkv[:, : (num_q_heads + num_k_heads) * head_dim].unflatten(-1, (-1, head_dim))
    for part, weight in zip(
        heads.split([num_q_heads, num_k_heads], dim=1), (q_weight, k_weight), strict=True
    ):
        normed = functional.rms_norm(part.float(), (head_dim,), weight.float(), eps)
        left, right = normed.to(qkv.dtype).float().chunk(2, dim=-1)
        part.copy_(torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1))
