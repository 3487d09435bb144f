"""What the kernels of recurrent layers read of a tree, and the layouts that they need."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_ddtree.ops.gdn_tree.stash import RecurrentShape, Stash
from sglang_ddtree.tree.topology import num_words


@dataclass(frozen=True, eq=False)
class TreePaths:
    """The paths of one step's trees as the kernels read them, in static buffers.

    parent: int32 [bs, N], -1 at the root and at padding. ancestors: int64 [bs, N, ceil(N / 64)];
    both as in `DraftTree`. Raises ValueError on another dtype, shape or memory layout.
    """

    parent: Tensor
    ancestors: Tensor

    def __post_init__(self) -> None:
        bs, nodes = self.parent.shape
        expected = (bs, nodes, num_words(nodes))
        if self.parent.dtype != torch.int32 or self.ancestors.dtype != torch.int64:
            raise ValueError(
                f"parent and ancestors must be int32 and int64, got {self.parent.dtype} and "
                f"{self.ancestors.dtype}"
            )
        if self.ancestors.shape != expected:
            raise ValueError(
                f"ancestors must be {list(expected)}, got {list(self.ancestors.shape)}"
            )
        if not (self.parent.is_contiguous() and self.ancestors.is_contiguous()):
            raise ValueError("parent and ancestors must be contiguous")


def check_pools(states: Tensor, windows: Tensor, shape: RecurrentShape) -> None:
    """Raises ValueError where a layer's pools have not the shape's rows, or rows with gaps."""
    expected = {
        "states": (states, (shape.v_heads, shape.v_dim, shape.k_dim)),
        "windows": (windows, (shape.channels, shape.kernel_size - 1)),
    }
    for name, (pool, row) in expected.items():
        if pool.shape[1:] != row or not pool[0].is_contiguous():
            raise ValueError(f"{name} must hold contiguous {list(row)}, got {list(pool.shape)}")


def check_stash(stash: Stash, layers: int, paths: TreePaths) -> None:
    """Raises ValueError where a stash [layers, requests, N, ...] does not hold the paths' nodes."""
    bs, nodes = paths.parent.shape
    found = stash.keys.shape
    if found[0] != layers or found[1] < bs or found[2] != nodes:
        raise ValueError(
            f"a stash of {list(found[:3])} does not hold {layers} layers of {bs} requests of "
            f"{nodes} nodes"
        )
