"""The Triton kernels of growth, acceptance and commit against the torch reference, exactly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.tree_cases import make_tree
from sglang_ddtree.ops.tree_build.triton import (
    PoolRows,
    accept_triton,
    grow_triton,
    move_path_triton,
)
from sglang_ddtree.tree import Candidates, DraftTree, GrowthPolicy, accept, grow, validate
from unit.strategies import drafts, properties, random_trees, targets


def device_of_this_run() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def assert_same(actual: object, expected: object) -> None:
    for name, value in vars(expected).items():
        mine = getattr(actual, name)
        assert mine.dtype == value.dtype, name
        assert torch.equal(mine.cpu(), value), name


def on_device(candidates: Candidates) -> Candidates:
    device = device_of_this_run()
    transitions = candidates.transitions
    return Candidates(
        candidates.tokens.to(device),
        candidates.log_probs.to(device),
        None if transitions is None else transitions.to(device),
    )


@given(draft=drafts(max_bs=2), budget=st.integers(0, 40), spine=st.booleans())
@properties(15)
def test_grown_trees_are_equal(draft: object, budget: int, spine: bool) -> None:
    device = device_of_this_run()
    expected = grow(
        draft.candidates, draft.root_tokens, GrowthPolicy(budget, spine), max_depth=draft.max_depth
    )
    tree = grow_triton(
        on_device(draft.candidates),
        draft.root_tokens.to(device),
        GrowthPolicy(budget, spine),
        max_depth=None if draft.max_depth is None else draft.max_depth.to(device),
    )
    assert_same(tree, expected)


@pytest.mark.parametrize("spine", [True, False])
def test_wide_tree_with_ties(spine: bool) -> None:
    """Log-probabilities of few values, so that every rule for ties is needed."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randint(0, 3, (1, 15, 9), generator=generator).float()
    candidates = Candidates.from_logits(logits, 8)
    root = torch.tensor([3])
    expected = grow(candidates, root, GrowthPolicy(130, spine))
    device = device_of_this_run()
    tree = grow_triton(on_device(candidates), root.to(device), GrowthPolicy(130, spine))
    assert_same(tree, expected)
    validate(expected)


@st.composite
def decisions(draw: st.DrawFn) -> tuple[DraftTree, Tensor]:
    tree = draw(random_trees(100))
    return tree, draw(targets(tree))


@given(decision=decisions())
@properties(25)
def test_acceptance_is_equal(decision: tuple[DraftTree, Tensor]) -> None:
    tree, target = decision
    device = device_of_this_run()
    moved = DraftTree(*(x.to(device) for x in vars(tree).values()))
    assert_same(accept_triton(moved, target.to(device)), accept(tree, target))
    bound = int(tree.depth.max())
    assert_same(
        accept_triton(moved, target.to(device), bound), accept(tree, target, max_depth=bound)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8])
def test_rows_of_the_path_move_and_no_others(dtype: torch.dtype) -> None:
    """Keys and values of two layers, different widths, slots shuffled; one path does not move."""
    device = device_of_this_run()
    generator = torch.Generator().manual_seed(0)
    tree = make_tree("random", 3, 40)
    target = torch.full_like(tree.tokens, -1)
    for request, leaf in enumerate((39, 20, 0)):
        while leaf > 0:
            up = int(tree.parent[request, leaf])
            target[request, up] = tree.tokens[request, leaf]
            leaf = up
    accepted = accept(tree, target)
    assert accepted.length.max() > 2
    slots = torch.randperm(200, generator=generator)[:120].view(3, 40)
    buffers = [
        torch.randint(0, 250, (200, 2, width), generator=generator).to(dtype).to(device)
        for width in (24, 40, 24, 40)
    ]
    expected = []
    for buffer in buffers:
        moved = buffer.cpu().clone()
        for request in range(3):
            steps = int(accepted.length[request]) + 1
            source = slots[request, accepted.path[request, :steps]]
            moved[slots[request, :steps]] = buffer.cpu()[source]
        expected.append(moved)
    on_card = type(accepted)(*(x.to(device) for x in vars(accepted).values()))
    move_path_triton(PoolRows.of(buffers), on_card, slots.to(device))
    for buffer, moved in zip(buffers, expected, strict=True):
        assert torch.equal(buffer.cpu(), moved)


def test_bad_input_is_refused() -> None:
    candidates = Candidates(torch.zeros(1, 1, 1, dtype=torch.int64), torch.zeros(1, 1, 1))
    with pytest.raises(ValueError, match="0 to 255, got 256"):
        grow_triton(candidates, torch.tensor([0]), GrowthPolicy(256))
    with pytest.raises(ValueError, match="root_tokens must be"):
        grow_triton(candidates, torch.tensor([0, 1]), GrowthPolicy(3))
    tree = make_tree("chain", 1, 3)
    with pytest.raises(ValueError, match="target_tokens must be int64"):
        accept_triton(tree, torch.zeros(1, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="contiguous"):
        PoolRows.of([torch.zeros(4, 6), torch.zeros(6, 4).T])
