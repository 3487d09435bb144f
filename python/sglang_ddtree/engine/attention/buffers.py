"""What all attention layers of a verify step share, at addresses that captured graphs keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_ddtree.ops.tree_attention.paged import PagedTree, SplitWorkspace, choose_splits
from sglang_ddtree.tree.topology import num_words


@dataclass(frozen=True)
class LayerKind:
    """Layers that share a launch grid.

    tiles: row tiles of one request, over all KV heads. longest_prefix: keys that a launch may see.
    """

    tiles: int
    longest_prefix: int

    def splits(self, bs: int, processors: int) -> int:
        return choose_splits(bs, self.tiles, processors, self.longest_prefix)


@dataclass(frozen=True, eq=False)
class WindowPool:
    """The pool that sliding-window layers have beside the full one.

    translate: slots of the full pool to slots of this one, any integer shape. window: of the widest
        layer, in positions.
    """

    translate: Callable[[Tensor], Tensor]
    window: int


class TreeBuffers:
    """The trees and slots of a step, of up to ``max_bs`` requests.

    They hold chains until the first step, which is what a captured graph then sees.

    Args:
        table: int32 ``[rows, columns]``, SGLang's ``req_to_token``.
        width: nodes of a tree.
    """

    def __init__(
        self, table: Tensor, max_bs: int, width: int, page_size: int, pool: WindowPool | None
    ) -> None:
        device = table.device
        self.max_bs = max_bs
        self._table, self._width, self._page_size, self._pool = table, width, page_size, pool
        self._request_rows = torch.zeros(max_bs, dtype=torch.int64, device=device)
        self._prefix_lens = torch.zeros(max_bs, dtype=torch.int64, device=device)
        node = torch.arange(width, device=device)
        self._depth = node.int().repeat(max_bs, 1)
        self._ancestors = _chain(width, device).repeat(max_bs, 1, 1)
        self._window_table = self._reach = None
        if pool is not None:
            self._window_table = torch.zeros(
                max_bs, table.shape[1], dtype=torch.int32, device=device
            )
            self._own_rows = torch.arange(max_bs, device=device)
            # From the start of the page in which the root's window begins.
            self._reach = torch.arange(-pool.window - page_size + 1, width, device=device)
            self.write_slots = torch.zeros(max_bs * width, dtype=torch.int64, device=device)

    def load(
        self, request_rows: Tensor, prefix_lens: Tensor, depth: Tensor, ancestors: Tensor
    ) -> None:
        """Take a step's trees; a padded batch may have more requests than trees.

        Args:
            request_rows, prefix_lens: int ``[bs]``.
            depth: int32 ``[requests, N]``. ancestors: int64 ``[requests, N, ceil(N / 64)]``.
        """
        bs, requests = len(request_rows), len(depth)
        self._request_rows[:bs].copy_(request_rows)
        self._prefix_lens[:bs].copy_(prefix_lens)
        self._depth[:requests].copy_(depth)
        self._ancestors[:requests].copy_(ancestors)

    def load_window(self, bs: int, out_slots: Tensor) -> None:
        """Look up where the window layers' rows are: what the root's window reaches, and the tree.

        Args:
            out_slots: int ``[tokens]``, slots of the full pool that this step writes.
        """
        if self._pool is None or self._window_table is None or self._reach is None:
            return
        positions = self._prefix_lens[:bs, None] + self._reach
        positions = positions.clamp(0, self._table.shape[1] - 1)
        slots = self._table[self._request_rows[:bs, None], positions].long()
        self._window_table[:bs].scatter_(1, positions, self._pool.translate(slots).int())
        self.write_slots.zero_()
        self.write_slots[: len(out_slots)].copy_(self._pool.translate(out_slots))

    def tree(self, bs: int) -> PagedTree:
        """Slots in the full pool."""
        return self._paged(bs, self._table, self._request_rows)

    def window_tree(self, bs: int) -> PagedTree | None:
        """Slots in the pool of window layers, where there is one."""
        if self._window_table is None:
            return None
        return self._paged(bs, self._window_table, self._own_rows)

    def _paged(self, bs: int, table: Tensor, rows: Tensor) -> PagedTree:
        return PagedTree(
            table=table,
            request_rows=rows[:bs],
            prefix_lens=self._prefix_lens[:bs],
            ancestors=self._ancestors[:bs],
            depth=self._depth[:bs],
            page_size=self._page_size,
        )


class Workspaces:
    """Partial results of splits and the outputs of a layer, in one set of buffers for all layers.

    Args:
        heads, v_dim: the largest of any layer. dtype: of outputs. processors: of the device.
    """

    def __init__(
        self,
        kinds: set[LayerKind],
        max_bs: int,
        width: int,
        heads: int,
        v_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
        processors: int,
    ) -> None:
        self._processors = processors
        sizes = range(1, max_bs + 1)
        parts = max(bs * (kind.splits(bs, processors) + 1) for kind in kinds for bs in sizes)
        rows, float32 = max_bs * width * heads, torch.float32
        self._partial = torch.empty(parts * width * heads * v_dim, dtype=float32, device=device)
        self._partial_lse = torch.empty(parts * width * heads, dtype=float32, device=device)
        self._arrived = torch.zeros(rows, dtype=torch.int32, device=device)
        self._out = torch.empty(rows * v_dim, dtype=dtype, device=device)
        self._lse = torch.empty(rows, dtype=float32, device=device)

    def of(self, kind: LayerKind, bs: int) -> SplitWorkspace:
        """For layers of a kind in batches of ``bs`` requests."""
        splits = kind.splits(bs, self._processors)
        return SplitWorkspace(self._partial, self._partial_lse, self._arrived, splits)

    def outputs(self, bs: int, width: int, heads: int, v_dim: int) -> tuple[Tensor, Tensor]:
        """Output ``[bs, N, H, Dv]`` and log-sum-exp ``[bs, N, H]``, the same for every layer."""
        shape = (bs, width, heads, v_dim)
        rows = bs * width * heads
        return self._out[: rows * v_dim].view(shape), self._lse[:rows].view(shape[:3])


def _chain(width: int, device: torch.device) -> Tensor:
    """int64 ``[N, ceil(N / 64)]``: the ancestor words of a chain."""
    node = torch.arange(width, device=device)[:, None]
    first = torch.arange(num_words(width), device=device) * 64
    below = (node - first + 1).clamp(0, 64)  # nodes of a word that are on the path
    # 1 << 64 is undefined; all 64 bits are -1.
    return torch.where(below == 64, -1, (1 << below.clamp(max=63)) - 1)
