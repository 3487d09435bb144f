"""What the tree-attention kernels read besides queries and caches, in static buffers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_ddtree.tree.topology import num_words


@dataclass(frozen=True, eq=False)
class PagedTree:
    """Slots and visibility of one verify step, shared by all layers and safe to capture.

    Column p of a request's row of the table is the slot of position p: the committed prefix, then
    the N nodes of the tree in node order. Slots of one page are consecutive, so kernels look up one
    slot a page.

    Attributes:
        table: int32 ``[rows, columns]``, the request-to-token table.
        request_rows: int32 or int64 ``[bs]``, row of each request in the table.
        prefix_lens: int32 or int64 ``[bs]``.
        ancestors: int64 ``[bs, N, ceil(N / 64)]``, as in ``DraftTree``.
        depth: int32 ``[bs, N]``.
        page_size: of the KV pool.

    Raises ``ValueError`` on another dtype, shape or memory layout.
    """

    table: Tensor
    request_rows: Tensor
    prefix_lens: Tensor
    ancestors: Tensor
    depth: Tensor
    page_size: int = 1

    def __post_init__(self) -> None:
        bs, nodes = self.depth.shape
        index = (torch.int32, torch.int64)
        expected = {
            "request_rows": ((bs,), index),
            "prefix_lens": ((bs,), index),
            "ancestors": ((bs, nodes, num_words(nodes)), (torch.int64,)),
            "depth": ((bs, nodes), (torch.int32,)),
            "table": (tuple(self.table.shape), (torch.int32,)),
        }
        for name, (shape, dtypes) in expected.items():
            value: Tensor = getattr(self, name)
            if tuple(value.shape) != shape or value.dtype not in dtypes:
                raise ValueError(
                    f"{name} is {value.dtype} {list(value.shape)}, expected "
                    f"{' or '.join(map(str, dtypes))} {list(shape)}"
                )
            if name == "table":
                if value.dim() != 2 or value.stride(1) != 1:
                    raise ValueError("table must be [rows, columns] with consecutive columns")
            elif not value.is_contiguous():
                raise ValueError(f"{name} must be contiguous")
        if self.page_size < 1:
            raise ValueError(f"page_size must be positive, got {self.page_size}")

    @property
    def bs(self) -> int:
        """Number of requests."""
        return self.depth.shape[0]

    @property
    def nodes(self) -> int:
        """N, nodes of each request with padding."""
        return self.depth.shape[1]


# Merging a part moves as many bytes as loading this many keys does, within a factor of two.
MIN_KEYS = 256


@dataclass(frozen=True, eq=False)
class SplitWorkspace:
    """Partial results of the splits, and the count of splits that have arrived at each row tile.

    Attributes:
        out: float32, at least ``bs * (splits + 1) * N * H * Dv`` values.
        lse: float32, at least ``bs * (splits + 1) * N * H`` values.
        arrived: int32, one count a tile, all 0 between launches: kernels leave it so.
        splits: parts of the prefix; the tree is one more.
        min_keys: of a part; a short prefix makes fewer parts, and the others stay empty.
    """

    out: Tensor
    lse: Tensor
    arrived: Tensor
    splits: int
    min_keys: int = MIN_KEYS

    @classmethod
    def allocate(
        cls,
        bs: int,
        nodes: int,
        heads: int,
        v_dim: int,
        splits: int,
        device: torch.device | str,
        min_keys: int = MIN_KEYS,
    ) -> SplitWorkspace:
        """Buffers for up to `bs` requests; made before a graph is captured and used by all layers.

        Raises ValueError where there is no split.
        """
        if splits < 1:
            raise ValueError(f"splits must be positive, got {splits}")
        rows = bs * (splits + 1) * nodes * heads
        return cls(
            out=torch.empty(rows * v_dim, dtype=torch.float32, device=device),
            lse=torch.empty(rows, dtype=torch.float32, device=device),
            arrived=torch.zeros(bs * nodes * heads, dtype=torch.int32, device=device),
            splits=splits,
            min_keys=min_keys,
        )

    def check(self, bs: int, nodes: int, heads: int, v_dim: int) -> None:
        """Raises ValueError where the buffers are too small for a launch."""
        rows = bs * (self.splits + 1) * nodes * heads
        if self.lse.numel() < rows or self.out.numel() < rows * v_dim:
            raise ValueError(
                f"the workspace holds {self.lse.numel()} rows, but {bs} requests of {nodes} nodes "
                f"with {heads} heads and {self.splits} splits need {rows} of {v_dim} values: "
                "allocate it for the largest batch"
            )


def choose_splits(
    bs: int, tiles: int, processors: int, longest_prefix: int, blocks_per_processor: int = 1
) -> int:
    """Parts of the prefix that fill a device once, with the part of the tree; fixed in a graph.

    tiles: row tiles of a request, over all KV heads. longest_prefix: that a graph will see.
    """
    fitting = blocks_per_processor * processors // max(1, bs * tiles) - 1
    return max(1, min(fitting, -(-longest_prefix // MIN_KEYS)))
