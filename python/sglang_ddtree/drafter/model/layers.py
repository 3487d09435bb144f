"""The Qwen3 block stack in plain torch, with the tensor names of the published checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Sizes of a block stack; rotary embedding over whole heads, at ``rope_theta``."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    rope_theta: float
    norm_eps: float
    max_positions: int


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


def rope_table(size: Shape, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``[positions, head_dim]`` of rotate-half rotary embedding, float32."""
    exponent = torch.arange(0, size.head_dim, 2, dtype=torch.float32) / size.head_dim
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * size.rope_theta**-exponent
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary embedding to ``x [..., tokens, head_dim]``."""
    left, right = x.chunk(2, dim=-1)
    turned = torch.cat([-right, left], dim=-1)
    return x * cos.to(x.dtype) + turned * sin.to(x.dtype)


class Attention(nn.Module):
    """Projections and norms of Qwen3 attention; who sees whom is the caller's affair."""

    def __init__(self, size: Shape) -> None:
        super().__init__()
        self.size = size
        self.q_proj = nn.Linear(size.hidden, size.heads * size.head_dim, bias=False)
        self.k_proj = nn.Linear(size.hidden, size.kv_heads * size.head_dim, bias=False)
        self.v_proj = nn.Linear(size.hidden, size.kv_heads * size.head_dim, bias=False)
        self.o_proj = nn.Linear(size.heads * size.head_dim, size.hidden, bias=False)
        self.q_norm = RMSNorm(size.head_dim, size.norm_eps)
        self.k_norm = RMSNorm(size.head_dim, size.norm_eps)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.size.head_dim)).transpose(-2, -3)

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``[..., tokens, hidden] -> [..., heads, tokens, head_dim]``."""
        return rotate(self.q_norm(self._split(self.q_proj(x))), cos, sin)

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """``[..., tokens, hidden] -> 2 x [..., kv_heads, tokens, head_dim]``."""
        keys = rotate(self.k_norm(self._split(self.k_proj(x))), cos, sin)
        return keys, self._split(self.v_proj(x))

    def repeat_kv(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.size.heads // self.size.kv_heads, dim=-3)

    def mix(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax attention; causal where ``mask`` is None and there is more than one query."""
        if queries.shape[-2] == 1 and mask is None:
            # One query sees every key, so the heads of a group can be its rows: nothing to repeat.
            grouped = queries.unflatten(1, (self.size.kv_heads, -1)).squeeze(-2)
            mixed = F.scaled_dot_product_attention(grouped, keys, values)
            return mixed.flatten(1, 2).unsqueeze(-2)
        keys, values = self.repeat_kv(keys), self.repeat_kv(values)
        causal = mask is None
        return F.scaled_dot_product_attention(queries, keys, values, mask, is_causal=causal)

    def output(self, x: Tensor) -> Tensor:
        return self.o_proj(x.transpose(-2, -3).flatten(-2))


class MLP(nn.Module):
    def __init__(self, size: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size.hidden, size.intermediate, bias=False)
        self.up_proj = nn.Linear(size.hidden, size.intermediate, bias=False)
        self.down_proj = nn.Linear(size.intermediate, size.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, size: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(size.hidden, size.norm_eps)
        self.self_attn = Attention(size)
        self.post_attention_layernorm = RMSNorm(size.hidden, size.norm_eps)
        self.mlp = MLP(size)

    def feed_forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.post_attention_layernorm(x))


class LayerList(nn.ModuleList):
    """``nn.ModuleList`` of ``Layer``, typed."""

    def __init__(self, size: Shape) -> None:
        super().__init__(Layer(size) for _ in range(size.layers))

    def __iter__(self) -> Iterator[Layer]:
        return iter(cast("list[Layer]", list(self._modules.values())))


def initialise(module: nn.Module) -> None:
    """Normal weights of standard deviation 0.02, residual outputs scaled down to near zero."""
    for name, parameter in module.named_parameters():
        if parameter.dim() == 2:
            small = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(parameter, std=0.004 if small else 0.02)
