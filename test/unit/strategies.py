"""Random draft trees and what they grow from, for property tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from sglang_ddtree.tree import Candidates, DraftTree, GrowthPolicy, grow, pack_bits
from sglang_ddtree.tree.oracle import Node, grow_oracle

Test = Callable[..., None]


def properties(examples: int) -> Callable[[Test], Test]:
    """Settings of a property test; no deadline, as first calls build index tables."""
    return settings(max_examples=examples, deadline=None)


@dataclass(frozen=True, eq=False)
class Draft:
    """Input of `grow` for a batch; `max_depth` is None where no request is limited."""

    candidates: Candidates
    root_tokens: Tensor
    max_depth: Tensor | None

    @property
    def bs(self) -> int:
        return len(self.root_tokens)

    def grow(self, budget: int, spine: bool) -> DraftTree:
        return grow(
            self.candidates, self.root_tokens, GrowthPolicy(budget, spine), max_depth=self.max_depth
        )

    def grow_oracle(self, request: int, budget: int, spine: bool) -> list[Node]:
        transitions = self.candidates.transitions
        return grow_oracle(
            self.candidates.tokens[request].tolist(),
            self.candidates.log_probs[request].tolist(),
            int(self.root_tokens[request]),
            GrowthPolicy(budget, spine),
            max_depth=None if self.max_depth is None else int(self.max_depth[request]),
            transitions=None if transitions is None else transitions[request].tolist(),
        )


def live_nodes(tree: DraftTree, request: int) -> list[Node]:
    """The live nodes of one request in the oracle's form."""
    columns = (tree.tokens, tree.parent, tree.depth, tree.log_prob)
    rows = (column[request, : tree.num_nodes[request]].tolist() for column in columns)
    return [Node(*fields) for fields in zip(*rows, strict=True)]


@st.composite
def logits(draw: st.DrawFn, depths: int, max_bs: int = 3) -> Tensor:
    """float32 [bs, depths, V], V in 1..40: sharp, flat and tied, with -inf, +inf and NaN."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    shape = (draw(st.integers(1, max_bs)), depths, draw(st.integers(1, 40)))
    values = torch.randn(shape, generator=generator) * draw(st.sampled_from([0.0, 0.5, 3.0, 60.0]))
    if draw(st.booleans()):
        values = values.round()
    for bad in (-math.inf, math.nan, math.inf):
        share = draw(st.sampled_from([0.0, 0.0, 0.02, 0.9]))
        # By depth and by request too, so that whole rows die and requests of a batch differ.
        rate = torch.rand(shape[:2], generator=generator).unsqueeze(2) * 2 * share
        values[torch.rand(shape, generator=generator) < rate] = bad
    return values


@st.composite
def drafts(draw: st.DrawFn, max_bs: int = 3, conditional: bool = True) -> Draft:
    """Drafts of block sizes 2..16 and top-k 1..8 over mixed requests."""
    depths = draw(st.integers(1, 15))
    candidates = Candidates.from_logits(
        draw(logits(depths, max_bs=max_bs)), draw(st.integers(1, 8))
    )
    bs, _, topk = candidates.tokens.shape
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    if conditional and draw(st.booleans()):
        shape = (bs, depths - 1, topk, topk)
        transitions = torch.randn(shape, generator=generator) - 1
        if draw(st.booleans()):
            transitions = transitions.round()
        transitions[torch.rand(shape, generator=generator) < 0.1] = -math.inf
        candidates = Candidates(candidates.tokens, candidates.log_probs, transitions)
    max_depth = None
    if draw(st.booleans()):
        max_depth = torch.randint(0, depths + 2, (bs,), generator=generator)
    return Draft(candidates, torch.randint(0, 40, (bs,), generator=generator), max_depth)


def tree_of(parents: list[list[int]], tokens: list[list[int]], width: int) -> DraftTree:
    """A tree with given nodes (parents[request][0] == -1), padded to `width`; no log-probabilities.

    Siblings may share tokens, which trees of `grow` never do.
    """
    bs = len(parents)
    parent = torch.full((bs, width), -1, dtype=torch.int32)
    depth = torch.zeros((bs, width), dtype=torch.int32)
    token = torch.tensor([[row[0]] * width for row in tokens])
    mask = torch.eye(width, dtype=torch.bool).repeat(bs, 1, 1)
    for request, row in enumerate(parents):
        for i, up in enumerate(row):
            token[request, i] = tokens[request][i]
            if i > 0:
                parent[request, i] = up
                depth[request, i] = depth[request, up] + 1
                mask[request, i] |= mask[request, up]
    num_nodes = torch.tensor([len(row) for row in parents], dtype=torch.int32)
    log_prob = torch.zeros(bs, width).masked_fill(
        torch.arange(width) >= num_nodes.unsqueeze(1), -math.inf
    )
    return DraftTree(token, parent, depth, pack_bits(mask), log_prob, num_nodes)


@st.composite
def random_trees(draw: st.DrawFn, max_width: int = 140) -> DraftTree:
    """Trees of any shape over a few tokens, siblings with equal tokens included."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    width, vocab = draw(st.integers(1, max_width)), draw(st.integers(1, 6))
    reach = draw(st.sampled_from([1, 3, max_width]))  # 1 makes chains
    parents, tokens = [], []
    for _ in range(draw(st.integers(1, 3))):
        n = int(torch.randint(1, width + 1, (), generator=generator))
        back = torch.randint(1, reach + 1, (n,), generator=generator).tolist()
        parents.append([max(i - back[i], 0) if i else -1 for i in range(n)])
        tokens.append(torch.randint(0, vocab, (n,), generator=generator).tolist())
    return tree_of(parents, tokens, width)


@st.composite
def targets(draw: st.DrawFn, tree: DraftTree) -> Tensor:
    """int64 [bs, N]: a target that follows the tree to some degree, from never to always."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    follow = draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))
    target = torch.randint(0, 40, tree.tokens.shape, generator=generator)
    for request in range(tree.bs):
        # Padding's target is the root's token: the one that would accept padding, could it be.
        target[request, tree.num_nodes[request] :] = tree.tokens[request, 0]
        nodes = list(range(1, int(tree.num_nodes[request])))
        for i in [nodes[j] for j in torch.randperm(len(nodes), generator=generator)]:
            if torch.rand((), generator=generator) < follow:
                target[request, tree.parent[request, i]] = tree.tokens[request, i]
    return target
