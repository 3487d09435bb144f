"""What every recurrent layer of one verify step shares."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_ddtree.tree.draft_tree import DraftTree
from sglang_ddtree.tree.topology import node_range


@dataclass(frozen=True, eq=False)
class TreeRecurrenceMetadata:
    """Paths of the tree in the two forms that recurrent layers need, made once a step.

    ancestors: bool [bs, N, N], [b, i, j]: node j is on the path root..i, i included. Node indices
        are a topological order, so this is lower triangular.
    taps: int64 [bs, N, K], what the short convolution of kernel size K reads at each node, oldest
        first and the node itself last, as columns of `window ++ nodes`: column c < K - 1 is column
        c of the committed window, column K - 1 + j is node j.

    Padding nodes have no ancestor but themselves and the committed window as their past.
    """

    ancestors: Tensor
    taps: Tensor

    @classmethod
    def of(cls, tree: DraftTree, kernel_size: int) -> TreeRecurrenceMetadata:
        """Metadata of a batch of trees; `kernel_size` is K, 1 for layers without a convolution."""
        return cls(tree.ancestor_mask(), _taps(tree.parent, kernel_size))

    @classmethod
    def chain(
        cls, bs: int, width: int, kernel_size: int, device: torch.device | str
    ) -> TreeRecurrenceMetadata:
        """Metadata of `bs` chains of `width` nodes: plain prefill, and for one node decoding."""
        nodes = torch.arange(width, device=device)
        ancestors = (nodes.unsqueeze(1) >= nodes).expand(bs, -1, -1)
        taps = nodes.unsqueeze(1) + torch.arange(kernel_size, device=device)
        return cls(ancestors, taps.expand(bs, -1, -1))

    @property
    def window_len(self) -> int:
        """K - 1, the number of inputs before a node that its convolution reads."""
        return self.taps.shape[2] - 1

    def on_path(self, node: Tensor) -> Tensor:
        """bool [bs, N]: nodes of the path root..node, int64 [bs]; none where `node` is -1."""
        mask = self.ancestors.take_along_dim(node.clamp(min=0).view(-1, 1, 1), 1).squeeze(1)
        return mask & (node >= 0).unsqueeze(1)

    def window_taps(self, node: Tensor) -> Tensor:
        """int64 [bs, K - 1]: columns of `window ++ nodes` that the successors of `node` read.

        node: int64 [bs]; -1 stands for the state before the root, so for the committed window.
        """
        taps = self.taps.take_along_dim(node.clamp(min=0).view(-1, 1, 1), 1).squeeze(1)[:, 1:]
        committed = node_range(self.window_len, node.device)
        return torch.where((node >= 0).unsqueeze(1), taps, committed)


def _taps(parent: Tensor, kernel_size: int) -> Tensor:
    """int64 [bs, N, K]: K - 1 steps up the parents and then on into the window, oldest first."""
    bs, width = parent.shape
    window_len = kernel_size - 1
    # The window is the chain above the root, so its columns are nodes like any other.
    of_window = node_range(window_len, parent.device).sub(1).clamp(min=0).expand(bs, -1)
    before = torch.cat([of_window, parent.long().clamp(min=-1) + window_len], 1)
    column = (node_range(width, parent.device) + window_len).expand(bs, -1)
    columns = [column]
    for _ in range(window_len):
        column = before.gather(1, column)
        columns.append(column)
    return torch.stack(columns[::-1], -1)
