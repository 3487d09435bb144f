"""A GDN layer of transformers and a pool of states, as SGLang's backends meet them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from sglang_ddtree.ops.gdn_tree import RecurrentShape

# Three value heads to a key head, as in Qwen3.6-27B.
SHAPE = RecurrentShape(k_heads=2, v_heads=6, k_dim=8, v_dim=4)
HIDDEN = 32


class Ungated(torch.nn.Module):
    """In place of the gated norm, to see what goes into it."""

    def forward(self, out: Tensor, gate: Tensor) -> Tensor:
        return out


def layer_of_transformers(seed: int) -> torch.nn.Module:
    """A random ``Qwen3_5GatedDeltaNet`` without its gated norm and output projection."""
    modeling = importlib.import_module("transformers.models.qwen3_5.modeling_qwen3_5")
    config = modeling.Qwen3_5TextConfig(
        hidden_size=HIDDEN,
        linear_num_key_heads=SHAPE.k_heads,
        linear_num_value_heads=SHAPE.v_heads,
        linear_key_head_dim=SHAPE.k_dim,
        linear_value_head_dim=SHAPE.v_dim,
        linear_conv_kernel_dim=SHAPE.kernel_size,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    torch.manual_seed(seed)
    module = modeling.Qwen3_5GatedDeltaNet(config, 0).eval()
    module.norm = Ungated()
    module.out_proj = torch.nn.Identity()
    return module.requires_grad_(False)


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer of the model: transformers' module, and its description in SGLang."""

    module: torch.nn.Module
    layer_id: int

    @property
    def radix(self) -> Any:
        """The attributes of ``RadixLinearAttention``."""
        return SimpleNamespace(
            layer_id=self.layer_id,
            num_k_heads=SHAPE.k_heads,
            num_v_heads=SHAPE.v_heads,
            head_k_dim=SHAPE.k_dim,
            head_v_dim=SHAPE.v_dim,
            conv_weights=self.module.conv1d.weight.squeeze(1),
            bias=None,
            activation="silu",
            A_log=self.module.A_log,
            dt_bias=self.module.dt_bias,
        )

    def inputs(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the projections give for ``hidden [tokens, HIDDEN]``: mixed_qkv, a, b."""
        module = self.module
        return module.in_proj_qkv(hidden), module.in_proj_a(hidden), module.in_proj_b(hidden)

    def expected(self, hidden: Tensor) -> Tensor:
        """``[tokens, H, dv]`` of a whole sequence, by transformers."""
        return self.module(hidden[None])[0].unflatten(-1, (SHAPE.v_heads, SHAPE.v_dim))


class Pool:
    """``HybridReqToTokenPool`` as far as recurrent layers use it; layer ids are 1, 3, 5, ..."""

    def __init__(self, layers: int, slots: int, size: int) -> None:
        s = SHAPE
        self.states = torch.zeros(layers, slots, s.v_heads, s.v_dim, s.k_dim)
        self.windows = torch.zeros(layers, slots, s.channels, s.kernel_size - 1)
        self.size = size
        self.mamba_map = {2 * i + 1: i for i in range(layers)}
        cache = SimpleNamespace(temporal=self.states, conv=[self.windows])
        self.mamba_pool = SimpleNamespace(mamba_cache=cache)

    def mamba2_layer_cache(self, layer_id: int) -> Any:
        index = self.mamba_map[layer_id]
        return SimpleNamespace(temporal=self.states[index], conv=[self.windows[index]])
