"""Trees and layer inputs for the tests of recurrent layers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from sglang_ddtree.ops.gdn_tree import (
    Recurrence,
    RecurrentShape,
    TreeRecurrenceMetadata,
    path_state,
    tree_recurrence,
)
from sglang_ddtree.ops.gdn_tree.oracle import recurrence_oracle
from sglang_ddtree.tree import Candidates, DraftTree, GrowthPolicy, grow
from unit.strategies import drafts, random_trees, tree_of

DECAYS = ("slow", "fast", "steep", "none", "resets", "mixed")
SMALL = RecurrentShape(k_heads=1, v_heads=3, k_dim=8, v_dim=4)


@dataclass(frozen=True, eq=False)
class Case:
    """Inputs of `tree_recurrence` for a batch of trees."""

    tree: DraftTree
    metadata: TreeRecurrenceMetadata
    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor
    beta: Tensor
    state: Tensor

    def run(self, **options: bool) -> Recurrence:
        return tree_recurrence(
            self.q,
            self.k,
            self.v,
            self.log_decay,
            self.beta,
            self.state,
            self.metadata,
            **options,
        )

    def walk(self, request: int, **options: bool) -> tuple[Tensor, Tensor]:
        """Outputs and states of all nodes, padding included, by the oracle."""
        inputs = (self.q, self.k, self.v, self.log_decay, self.beta, self.state)
        parents = self.tree.parent[request].tolist()
        return recurrence_oracle(*(x[request] for x in inputs), parents, **options)

    def state_after(self, result: Recurrence, node: Tensor) -> Tensor:
        return path_state(
            self.state, result.keys, result.updates, result.log_decay, self.metadata, node
        )


def log_decays(kind: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """float64 logarithms of decays: down to exp(-50) a step, exactly one and exactly zero too."""
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    slow = -0.05 * uniform
    if kind == "mixed":  # a path of large and of tiny steps is where differences of sums fail
        return torch.where(torch.rand(shape, generator=generator) < 0.5, slow, -50 * uniform)
    if kind == "resets":
        return slow.masked_fill(torch.rand(shape, generator=generator) < 0.2, -math.inf)
    factor = {"slow": 0.05, "fast": 5.0, "none": 0.0}
    return -factor[kind] * uniform if kind in factor else torch.full_like(uniform, -50.0)


def case_of(
    tree: DraftTree, shape: RecurrentShape, dtype: torch.dtype, decay: str, seed: int
) -> Case:
    """Random inputs over the given trees, keys and queries as large as a network makes them."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    bs, width = tree.tokens.shape
    heads = (bs, width, shape.v_heads)
    gates = (*heads, shape.k_dim) if shape.channel_decay else heads
    return Case(
        tree,
        TreeRecurrenceMetadata.of(tree, shape.kernel_size),
        *(normal(bs, width, shape.k_heads, shape.k_dim).to(dtype) * 3 for _ in range(2)),
        normal(*heads, shape.v_dim).to(dtype),
        log_decays(decay, gates, generator).to(torch.promote_types(dtype, torch.float32)),
        torch.rand(heads, generator=generator).to(dtype),
        normal(bs, shape.v_heads, shape.v_dim, shape.k_dim).to(
            torch.promote_types(dtype, torch.float32)
        ),
    )


@st.composite
def trees(draw: st.DrawFn, max_width: int = 100) -> DraftTree:
    """Grown trees with padding, chains, stars, and trees with random parents."""
    kind = draw(st.sampled_from(["grown", "random", "star"]))
    if kind == "grown":
        return draw(drafts()).grow(draw(st.integers(0, max_width - 1)), draw(st.booleans()))
    if kind == "random":
        return draw(random_trees(max_width))
    sizes = draw(st.lists(st.integers(1, max_width), min_size=1, max_size=2))
    stars = [[-1] + [0] * (size - 1) for size in sizes]
    return tree_of(stars, [list(range(size)) for size in sizes], max(sizes))


@st.composite
def shapes(draw: st.DrawFn) -> RecurrentShape:
    """Grouped and ungrouped heads, dk on both sides of dv, a decay a head and a channel."""
    k_heads = draw(st.sampled_from([1, 2]))
    return RecurrentShape(
        k_heads=k_heads,
        v_heads=k_heads * draw(st.sampled_from([1, 3])),
        k_dim=draw(st.sampled_from([1, 8])),
        v_dim=draw(st.sampled_from([4, 10])),
        channel_decay=draw(st.booleans()),
    )


@st.composite
def cases(draw: st.DrawFn, dtype: torch.dtype) -> Case:
    return case_of(
        draw(trees()),
        draw(shapes()),
        dtype,
        draw(st.sampled_from(DECAYS)),
        draw(st.integers(0, 2**32)),
    )


def grown_tree(bs: int, budget: int, depths: int = 15, seed: int = 0) -> DraftTree:
    """A batch of different trees of block size `depths` + 1; the last one is mostly padding."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(bs, depths, 40, generator=generator) * 2
    candidates = Candidates.from_logits(logits, 8)
    max_depth = torch.full((bs,), depths)
    max_depth[-1] = 1 if bs > 1 else depths
    roots = torch.zeros(bs, dtype=torch.int64)
    return grow(candidates, roots, GrowthPolicy(budget), max_depth=max_depth)


def relative(actual: Tensor, expected: Tensor) -> float:
    """Largest difference over the largest expected value."""
    assert torch.isfinite(actual).all()
    difference = (actual.double() - expected).abs().max()
    return float(difference / expected.abs().max().clamp(min=1e-30))
