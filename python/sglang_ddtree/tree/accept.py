"""Acceptance: which path of a draft tree the target model agrees with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_ddtree.tree.draft_tree import DraftTree
from sglang_ddtree.tree.topology import node_range, own_words, pack_bits


@dataclass(frozen=True, eq=False)
class Acceptance:
    """The accepted path and the output of one step, P = max_depth + 1.

    path: int64 [bs, P], node indices from the root to the last accepted node, padded with the
        latter; path[:, j] >= j up to there.
    length: int32 [bs], accepted draft tokens, so without the root and the bonus token.
    leaf: int64 [bs], the last accepted node; 0, the root, where nothing was accepted.
    tokens: int64 [bs, P], the length + 1 output tokens (accepted, then bonus), padded with 0.
    bonus: int64 [bs], the target's token after the leaf.
    """

    path: Tensor
    length: Tensor
    leaf: Tensor
    tokens: Tensor
    bonus: Tensor


def accept(tree: DraftTree, target_tokens: Tensor, max_depth: int | None = None) -> Acceptance:
    """Follow the target through the tree.

    target_tokens: int64 [bs, N], the token that the target puts after each node; padding's entries
        are not used. Drawn independently at every node, they keep the target's distribution.
    max_depth: an upper bound of the depth of any node (D for a tree of `grow`), N - 1 by default.

    A node is accepted iff each node of its path below the root holds the token that the target put
    after its parent: one comparison of bit words instead of a walk. Siblings of a tree of `grow`
    hold distinct tokens, so the accepted nodes are one path; in other trees the deepest wins, and
    of several the one with the lowest index. Raises ValueError on a shape other than [bs, N].
    """
    if target_tokens.shape != tree.tokens.shape:
        raise ValueError(
            f"target_tokens must be {list(tree.tokens.shape)}, got {list(target_tokens.shape)}"
        )
    nodes = node_range(tree.width, tree.tokens.device)
    expected = target_tokens.gather(1, tree.parent.clamp(min=0).long())
    match = (tree.tokens == expected) | (nodes == 0)
    agreed = tree.ancestors & pack_bits(match).unsqueeze(1)
    accepted = (agreed == tree.ancestors).all(-1)
    # Of equal values `max` returns the first, so padding, at depth 0, loses to the root.
    length, leaf = torch.where(accepted, tree.depth, -1).max(1)
    path = _path(tree, leaf, tree.width - 1 if max_depth is None else max_depth)
    # A token on the path is what the target put after its parent, and so is the bonus token.
    output = target_tokens.gather(1, path)
    steps = node_range(path.shape[1], path.device)
    return Acceptance(
        path=path,
        length=length,
        leaf=leaf,
        tokens=torch.where(steps <= length.unsqueeze(1), output, 0),
        bonus=target_tokens.gather(1, leaf.unsqueeze(1)).squeeze(1),
    )


def _path(tree: DraftTree, leaf: Tensor, max_depth: int) -> Tensor:
    """int64 [bs, max_depth + 1]: the nodes from the root to `leaf`, then `leaf` again."""
    bs, width, words = tree.ancestors.shape
    of_leaf = tree.ancestors.gather(1, leaf.view(bs, 1, 1).expand(-1, -1, words))
    on_path = (of_leaf & own_words(width, leaf.device)).any(-1)
    # Nodes off the path all go to one column too many.
    column = torch.where(on_path, tree.depth, max_depth + 1)
    path = leaf.unsqueeze(1).repeat(1, max_depth + 2)
    path.scatter_(1, column.long(), node_range(width, leaf.device).expand(bs, -1))
    return path[:, : max_depth + 1]
