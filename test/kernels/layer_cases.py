"""Recurrent layers, their inputs and their pools for kernel tests; what is not theirs is NaN."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_ddtree.ops.gdn_tree import RecurrentLayer, RecurrentShape, Stash
from sglang_ddtree.tree import DraftTree

SLOTS = 5


@dataclass(frozen=True, eq=False)
class Layers:
    """Some layers' weights, inputs and pools; slots that no request owns hold NaN."""

    tree: DraftTree
    layers: list[RecurrentLayer]
    mixed: Tensor
    a: Tensor
    b: Tensor
    states: Tensor
    windows: Tensor
    slots: Tensor


def layers_of(
    tree: DraftTree, shape: RecurrentShape, dtype: torch.dtype, bias: bool, decay: float, count: int
) -> Layers:
    generator = torch.Generator().manual_seed(tree.width)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    bs, nodes = tree.tokens.shape
    layers = [
        RecurrentLayer(
            shape,
            normal(shape.channels, shape.kernel_size).to(dtype) * 0.5,
            normal(shape.channels).to(dtype) if bias else None,
            "silu" if bias else None,
            A_log=normal(shape.v_heads) + decay,
            dt_bias=normal(shape.v_heads),
        )
        for _ in range(count)
    ]
    slots = torch.arange(SLOTS - 1, SLOTS - 1 - bs, -1)
    states = torch.full((count, SLOTS, shape.v_heads, shape.v_dim, shape.k_dim), math.nan)
    windows = torch.full((count, SLOTS, shape.channels, shape.kernel_size - 1), math.nan)
    states[:, slots] = normal(count, bs, *states.shape[2:])
    windows[:, slots] = normal(count, bs, *windows.shape[2:])
    return Layers(
        tree,
        layers,
        normal(count, bs, nodes, shape.channels).to(dtype),
        normal(count, bs, nodes, shape.v_heads).to(dtype),
        normal(count, bs, nodes, shape.v_heads).to(dtype) * 2,
        states,
        windows.to(dtype),
        slots,
    )


def stash_of(case: Layers, device: str) -> Stash:
    """One request more than the batch has, and NaN throughout."""
    bs, nodes = case.tree.tokens.shape
    stash = Stash.allocate(
        case.layers[0].shape,
        (len(case.layers), bs + 1, nodes),
        dtype=case.mixed.dtype,
        device=device,
    )
    for value in vars(stash).values():
        value.fill_(math.nan)
    return stash
