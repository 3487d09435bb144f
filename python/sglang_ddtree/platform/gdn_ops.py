"""Torch versions of the Triton launches around a gated-delta-rule layer."""

from __future__ import annotations

import torch
from torch.nn import functional

Split = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def split_projections(
    mixed_qkvz: torch.Tensor,
    mixed_ba: torch.Tensor,
    num_heads_qk: int,
    num_heads_v: int,
    head_qk: int,
    head_v: int,
) -> Split:
    """Fused input projections of Qwen3.5 and Qwen3.6: all queries, all keys, all values, all gates.

    Args:
        mixed_qkvz: ``[tokens, 2 * num_heads_qk * head_qk + 2 * num_heads_v * head_v]``.
        mixed_ba: ``[tokens, 2 * num_heads_v]``, ``b`` before ``a``.

    Returns:
        Convolution inputs ``[tokens, C]``, output gates ``[tokens, num_heads_v, head_v]``, ``b``
        and ``a`` ``[tokens, num_heads_v]``, all contiguous.

    Follows srt/../kernels/ops/attention/triton_gdn_fused_proj.py:272@0.5.23.
    """
    values = num_heads_v * head_v
    mixed_qkv, z = mixed_qkvz.split([2 * num_heads_qk * head_qk + values, values], dim=-1)
    b, a = mixed_ba.chunk(2, dim=-1)
    z = z.unflatten(-1, (num_heads_v, head_v))
    return mixed_qkv.contiguous(), z.contiguous(), b.contiguous(), a.contiguous()


def split_grouped_projections(
    mixed_qkvz: torch.Tensor,
    mixed_ba: torch.Tensor,
    num_heads_qk: int,
    num_heads_v: int,
    head_qk: int,
    head_v: int,
) -> Split:
    """Fused input projections of Qwen3-Next: query, key, values and gates head group by head group.

    Arguments and results as in :func:`split_projections`. Follows
    srt/../kernels/ops/attention/triton_gdn_fused_proj.py:110@0.5.23.
    """
    group = num_heads_v // num_heads_qk
    sizes = [head_qk, head_qk, group * head_v, group * head_v]
    q, k, v, z = mixed_qkvz.unflatten(-1, (num_heads_qk, -1)).split(sizes, dim=-1)
    b, a = mixed_ba.unflatten(-1, (num_heads_qk, -1)).chunk(2, dim=-1)
    mixed_qkv = torch.cat([x.flatten(1) for x in (q, k, v)], dim=-1)
    z = z.reshape(-1, num_heads_v, head_v)
    return mixed_qkv, z, b.reshape(-1, num_heads_v), a.reshape(-1, num_heads_v)


def gated_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    z: torch.Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    is_rms_norm: bool = False,
    activation: str = "swish",
) -> torch.Tensor:
    """Layer or RMS norm over the last dimension, gated by ``z`` before or after; float32 inside.

    Args:
        x, z: ``[..., D]``. weight, bias: ``[D]``.
        group_size: normalise groups of that many channels instead of all ``D``.
        activation: of the gate, ``swish``, ``silu`` or ``sigmoid``.

    Returns:
        ``[..., D]`` in the dtype of ``x``.

    Follows srt/../kernels/ops/attention/fla/layernorm_gated.py:431@0.5.23.
    """
    y = x.float()
    gate = None if z is None else z.reshape(x.shape).float()
    if gate is not None:
        gate = gate.sigmoid() if activation == "sigmoid" else functional.silu(gate)
    if gate is not None and not norm_before_gate:
        y = y * gate
    groups = y.unflatten(-1, (-1, group_size or y.shape[-1]))
    if not is_rms_norm:
        groups = groups - groups.mean(-1, keepdim=True)
    groups = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps)
    y = groups.flatten(-2) * weight.float()
    if bias is not None:
        y = y + bias.float()
    if gate is not None and norm_before_gate:
        y = y * gate
    return y.to(x.dtype)


def gate_by_sigmoid(
    attn_output: torch.Tensor, gate: torch.Tensor, inplace: bool = False, quant: bool = False
) -> torch.Tensor:
    """``attn_output * sigmoid(gate)``, the output gate of full-attention layers.

    Args:
        attn_output: ``[tokens, heads * head_dim]``.
        gate: the same shape, or ``[tokens, heads, head_dim]`` with any strides.
        inplace: write into ``attn_output`` and return it.

    Raises:
        NotImplementedError: ``quant``, the FP8 output of a GPU's path.

    Follows srt/../kernels/ops/elementwise/elementwise.py:53@0.5.23.
    """
    if quant:
        raise NotImplementedError("the CPU platform has no FP8 attention gate")
    gated = (attn_output.float() * gate.reshape(attn_output.shape).float().sigmoid()).to(
        attn_output.dtype
    )
    return attn_output.copy_(gated) if inplace else gated
