"""The draft tree: a batch of token trees in static shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_ddtree.tree.topology import num_words, unpack_bits


@dataclass(frozen=True, eq=False)
class DraftTree:
    """One tree of at most N = budget + 1 nodes per request; node 0, the root, is the last
    committed token.

    tokens: int64 [bs, N].
    parent: int32 [bs, N], -1 at the root; parent[i] < i, so nodes are in topological order.
    depth: int32 [bs, N], distance from the root.
    ancestors: int64 [bs, N, ceil(N / 64)], bit j of node i: j is on the path root..i, i included.
    log_prob: float32 [bs, N], cumulative draft log-probability, 0 at the root.
    num_nodes: int32 [bs], live nodes, at least 1.

    Nodes i >= num_nodes are padding: the root's token (so that it can be embedded) at depth 0 (so
    that its position is in range, and acceptance prefers the root), log_prob -inf, parent -1 and no
    ancestor bit but its own (so that its softmax row is finite). No live node has its bit.
    """

    tokens: Tensor
    parent: Tensor
    depth: Tensor
    ancestors: Tensor
    log_prob: Tensor
    num_nodes: Tensor

    @property
    def bs(self) -> int:
        """Number of requests."""
        return self.tokens.shape[0]

    @property
    def width(self) -> int:
        """N, the number of nodes of each request with padding."""
        return self.tokens.shape[1]

    def ancestor_mask(self) -> Tensor:
        """bool [bs, N, N]: node i (row) sees node j (column). For references, not for kernels."""
        return unpack_bits(self.ancestors, self.width)

    def positions(self, prefix_lens: Tensor) -> Tensor:
        """int64 [bs, N]: rope positions, with `prefix_lens` [bs] tokens before the root."""
        return prefix_lens.long().unsqueeze(1) + self.depth


def validate(tree: DraftTree) -> None:
    """Check every invariant of `DraftTree` on the host; for tests and debugging.

    Raises ValueError that names the request and the node.
    """
    _check_layout(tree)
    rows = zip(
        tree.tokens.tolist(),
        tree.parent.tolist(),
        tree.depth.tolist(),
        tree.ancestor_mask().tolist(),
        tree.log_prob.tolist(),
        tree.num_nodes.tolist(),
        strict=True,
    )
    for request, (tokens, parent, depth, mask, log_prob, num_nodes) in enumerate(rows):
        if not 1 <= num_nodes <= tree.width:
            raise ValueError(f"request {request}: num_nodes {num_nodes} not in 1..{tree.width}")
        paths: list[set[int]] = []
        children: set[tuple[int, int]] = set()
        for i in range(tree.width):
            up, live = parent[i], 0 < i < num_nodes
            if live:
                good = 0 <= up < i and depth[i] == depth[up] + 1
                good = good and -math.inf < log_prob[i] <= log_prob[up]
                good = good and (up, tokens[i]) not in children
                children.add((up, tokens[i]))
            else:
                good = up == -1 and depth[i] == 0 and tokens[i] == tokens[0]
                good = good and log_prob[i] == (-math.inf if i else 0.0)
            if not good:
                raise ValueError(
                    f"request {request}, node {i} of {num_nodes}: token {tokens[i]}, parent {up}, "
                    f"depth {depth[i]}, log_prob {log_prob[i]} is no valid node"
                )
            paths.append(paths[up] | {i} if live else {i})
            if {j for j, bit in enumerate(mask[i]) if bit} != paths[i]:
                raise ValueError(f"request {request}, node {i}: wrong ancestors")


def _check_layout(tree: DraftTree) -> None:
    bs, width = tree.tokens.shape
    layout = {
        "tokens": (torch.int64, (bs, width)),
        "parent": (torch.int32, (bs, width)),
        "depth": (torch.int32, (bs, width)),
        "ancestors": (torch.int64, (bs, width, num_words(width))),
        "log_prob": (torch.float32, (bs, width)),
        "num_nodes": (torch.int32, (bs,)),
    }
    for name, (dtype, shape) in layout.items():
        value: Tensor = getattr(tree, name)
        if value.dtype != dtype or tuple(value.shape) != shape:
            raise ValueError(
                f"{name} is {value.dtype} {list(value.shape)}, expected {dtype} {list(shape)}"
            )
