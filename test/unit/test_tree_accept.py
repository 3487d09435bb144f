"""Acceptance against the walk, and what it promises about trees, chains and budgets."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sglang_ddtree.tree import Acceptance, Candidates, DraftTree, GrowthPolicy, accept, grow
from sglang_ddtree.tree.oracle import accept_oracle
from unit.strategies import Draft, drafts, properties, random_trees, targets, tree_of


def assert_equals_walk(
    tree: DraftTree, target: Tensor, acceptance: Acceptance, columns: int
) -> None:
    assert acceptance.path.shape == acceptance.tokens.shape == (tree.bs, columns)
    for request, live in enumerate(tree.num_nodes.tolist()):
        tokens, parents = (x[request, :live].tolist() for x in (tree.tokens, tree.parent))
        path, output = accept_oracle(tokens, parents, target[request, :live].tolist())
        length = len(path) - 1
        assert acceptance.length[request] == length
        assert acceptance.leaf[request] == path[-1]
        assert acceptance.bonus[request] == output[-1]
        padding = columns - len(path)
        assert acceptance.path[request].tolist() == path + [path[-1]] * padding
        assert acceptance.tokens[request].tolist() == output + [0] * padding
        assert all(node >= j for j, node in enumerate(path))


@given(drafts(), st.one_of(st.integers(0, 40), st.integers(0, 255)), st.booleans(), st.data())
@properties(150)
def test_equals_the_walk_on_grown_trees(
    draft: Draft, budget: int, spine: bool, data: st.DataObject
) -> None:
    tree = draft.grow(budget, spine)
    target = data.draw(targets(tree))
    depths = draft.candidates.depths
    assert_equals_walk(tree, target, accept(tree, target, depths), depths + 1)


@given(random_trees(), st.data())
@properties(150)
def test_equals_the_walk_on_any_tree(tree: DraftTree, data: st.DataObject) -> None:
    target = data.draw(targets(tree))
    assert_equals_walk(tree, target, accept(tree, target), tree.width)


@given(drafts(), st.integers(0, 100), st.data())
@properties(100)
def test_a_tree_accepts_no_less_than_its_chain(
    draft: Draft, extra: int, data: st.DataObject
) -> None:
    depths = draft.candidates.depths
    tree = draft.grow(depths + extra, spine=True)
    target = data.draw(targets(tree))
    length = accept(tree, target, depths).length
    for request, live in enumerate(tree.num_nodes.tolist()):
        chain = 0
        while (
            chain + 1 < live
            and tree.parent[request, chain + 1] == chain
            and tree.tokens[request, chain + 1] == target[request, chain]
        ):
            chain += 1
        assert length[request] >= chain


@given(drafts(), st.integers(0, 200), st.integers(0, 200), st.booleans(), st.data())
@properties(100)
def test_more_budget_never_lowers_the_accepted_length(
    draft: Draft, one: int, other: int, spine: bool, data: st.DataObject
) -> None:
    few, many = sorted((one, other))
    large = draft.grow(many, spine)
    target = data.draw(targets(large))
    small = draft.grow(few, spine)
    depths = draft.candidates.depths
    shorter = accept(small, target[:, : few + 1], depths)
    longer = accept(large, target, depths)
    assert (longer.length >= shorter.length).all()
    for request, length in enumerate(shorter.length.tolist()):
        output = shorter.tokens[request, : length + 1]
        assert torch.equal(longer.tokens[request, : length + 1], output)


def next_token(context: list[int]) -> int:
    """A toy target model: greedy, and dependent on more than the last token."""
    return (context[-1] * 7 + context[-2] * 3 + len(context) % 3) % 11


@pytest.mark.parametrize("budget", [0, 1, 7, 20, 63, 100])
@pytest.mark.parametrize("hint", [0.0, 2.0, 20.0])
def test_output_is_that_of_plain_decoding(budget: int, hint: float) -> None:
    """A drafter that knows the target to a degree, from not at all to always, for two requests."""
    generator = torch.Generator().manual_seed(budget)
    contexts = [[1, 2], [5, 3]]
    plain = [list(context) for context in contexts]
    for context in plain:
        while len(context) < 80:
            context.append(next_token(context))
    accepted = 0
    for _ in range(20):
        logits = torch.randn(2, 7, 11, generator=generator)
        for request, context in enumerate(contexts):
            guess = list(context)
            for depth in range(7):
                guess.append(next_token(guess))
                logits[request, depth, guess[-1]] += hint
        roots = torch.tensor([context[-1] for context in contexts])
        tree = grow(Candidates.from_logits(logits, 5), roots, GrowthPolicy(budget))
        target = torch.zeros_like(tree.tokens)
        for request, context in enumerate(contexts):
            paths: list[list[int]] = []
            for i, (token, up) in enumerate(
                zip(tree.tokens[request].tolist(), tree.parent[request].tolist(), strict=True)
            ):
                paths.append([*paths[up], token] if i and up >= 0 else list(context))
                target[request, i] = next_token(paths[i])
        acceptance = accept(tree, target, 7)
        for request, context in enumerate(contexts):
            context += acceptance.tokens[request, : int(acceptance.length[request]) + 1].tolist()
        accepted += int(acceptance.length.sum())
    for context, expected in zip(contexts, plain, strict=True):
        end = min(len(context), 80)
        assert context[:end] == expected[:end]
    if hint == 20.0:
        assert accepted == 2 * 20 * min(budget, 7)


def test_equal_siblings_end_at_the_deepest_then_the_first() -> None:
    #       0 -> 1(a) -> 3(b);  0 -> 2(a) -> 4(b) -> 5(c), 6(c)
    tree = tree_of([[-1, 0, 0, 1, 2, 4, 4]], [[9, 1, 1, 2, 2, 3, 3]], 8)
    target = torch.tensor([[1, 2, 2, 0, 3, 8, 8, 9]])
    acceptance = accept(tree, target)
    assert acceptance.path[0, :4].tolist() == [0, 2, 4, 5]
    target[0, 4] = 0
    assert accept(tree, target).path[0, :3].tolist() == [0, 1, 3]


@pytest.mark.parametrize("width", [64, 65, 128, 256])
def test_a_path_through_the_last_bit_of_a_word(width: int) -> None:
    parents = list(range(-1, width - 1))
    tokens = [i % 5 for i in range(width)]
    tree = tree_of([parents], [tokens], width)
    target = torch.tensor([[*tokens[1:], 77]])
    acceptance = accept(tree, target)
    assert acceptance.length.tolist() == [width - 1]
    assert acceptance.path.tolist() == [list(range(width))]
    assert acceptance.bonus.tolist() == [77]
    target[0, 62] = 99
    assert accept(tree, target).length.tolist() == [62]


def test_padding_is_not_accepted_where_the_target_repeats_the_root() -> None:
    tree = tree_of([[-1, 0], [-1]], [[4, 6], [4]], 5)
    acceptance = accept(tree, torch.full((2, 5), 4), 1)
    assert acceptance.length.tolist() == [0, 0]
    assert acceptance.tokens.tolist() == [[4, 0], [4, 0]]


def test_dtypes() -> None:
    acceptance = accept(tree_of([[-1]], [[4]], 3), torch.zeros(1, 3, dtype=torch.int64))
    assert acceptance.length.dtype == torch.int32
    for name in ("path", "leaf", "tokens", "bonus"):
        assert getattr(acceptance, name).dtype == torch.int64


def test_an_empty_batch_is_accepted() -> None:
    candidates = Candidates.from_logits(torch.zeros(0, 3, 9), 2)
    tree = grow(candidates, torch.zeros(0, dtype=torch.int64), GrowthPolicy(6))
    assert accept(tree, torch.zeros(0, 7, dtype=torch.int64), 3).path.shape == (0, 4)


def test_a_target_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="target_tokens"):
        accept(tree_of([[-1, 0]], [[4, 5]], 3), torch.zeros(1, 2, dtype=torch.int64))
