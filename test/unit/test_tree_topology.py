"""Bit words, ancestor sets and the invariants that `validate` enforces."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_ddtree.tree import (
    Candidates,
    DraftTree,
    GrowthPolicy,
    ancestor_words,
    grow,
    pack_bits,
    unpack_bits,
    validate,
)
from unit.strategies import properties, random_trees


@given(st.lists(st.lists(st.booleans(), min_size=70, max_size=70), min_size=1, max_size=3))
@properties(60)
def test_words_hold_bit_j_at_place_j(rows: list[list[bool]]) -> None:
    for n in (1, 63, 64, 65, 70):
        bits = torch.tensor(rows)[:, :n]
        words = pack_bits(bits)
        assert words.dtype == torch.int64
        as_integers = [sum(bit << j for j, bit in enumerate(row)) for row in bits.tolist()]
        unsigned = [
            sum((word % 2**64) << (64 * w) for w, word in enumerate(row)) for row in words.tolist()
        ]
        assert unsigned == as_integers
        assert torch.equal(unpack_bits(words, n), bits)


@given(random_trees())
@properties(80)
def test_ancestors_equal_a_walk_up_the_parents(tree: DraftTree) -> None:
    deepest = int(tree.depth.max())
    words = ancestor_words(tree.parent.long())
    assert torch.equal(words, ancestor_words(tree.parent.long(), deepest))
    mask = unpack_bits(words, tree.width)
    for request, parents in enumerate(tree.parent.tolist()):
        for i in range(tree.width):
            path, node = set(), i
            while node >= 0:
                path.add(node)
                node = parents[node]
            assert {j for j in range(tree.width) if mask[request, i, j]} == path


@pytest.mark.parametrize("width", [1, 2, 63, 64, 65, 128, 256])
def test_ancestors_of_a_chain(width: int) -> None:
    mask = unpack_bits(ancestor_words(torch.arange(width).unsqueeze(0) - 1), width)
    assert torch.equal(mask[0], torch.ones(width, width, dtype=torch.bool).tril())


def example() -> DraftTree:
    """Two requests of 12 slots, the second with one live node below the root."""
    logits = torch.randn(2, 3, 20, generator=torch.Generator().manual_seed(3))
    candidates = Candidates.from_logits(logits, 4)
    max_depth = torch.tensor([3, 1])
    return grow(candidates, torch.tensor([5, 6]), GrowthPolicy(11), max_depth=max_depth)


def test_positions_count_depth_from_the_prefix() -> None:
    tree = example()
    positions = tree.positions(torch.tensor([100, 7], dtype=torch.int32))
    assert positions.dtype == torch.int64
    assert positions[0].tolist() == [100 + depth for depth in tree.depth[0].tolist()]
    assert positions[1, : tree.num_nodes[1]].tolist() == [7] + [8] * (int(tree.num_nodes[1]) - 1)
    assert (positions[1, tree.num_nodes[1] :] == 7).all()


def test_padding_sees_itself_and_is_seen_by_nobody() -> None:
    tree = example()
    mask, live = tree.ancestor_mask()[1], int(tree.num_nodes[1])
    assert 1 < live < tree.width
    assert torch.equal(mask[live:, live:], torch.eye(tree.width - live, dtype=torch.bool))
    assert not mask[:live, live:].any()
    assert not mask[live:, :live].any()


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [
        ("parent", (0, 0), 0),
        ("parent", (0, 2), 2),
        ("parent", (0, 2), 3),
        ("parent", (0, 4), -1),
        ("parent", (1, 11), 0),
        ("depth", (0, 0), 1),
        ("depth", (0, 3), 1),
        ("depth", (1, 11), 1),
        ("ancestors", (0, 3, 0), 0b1001),
        ("ancestors", (0, 1, 0), 0b10),
        ("ancestors", (1, 11, 0), (1 << 11) + 1),
        ("log_prob", (0, 0), -0.5),
        ("log_prob", (0, 2), 0.0),
        ("log_prob", (0, 3), float("-inf")),
        ("log_prob", (0, 3), float("nan")),
        ("log_prob", (1, 11), 0.0),
        ("tokens", (1, 11), 7),
        ("num_nodes", (0,), 0),
        ("num_nodes", (0,), 13),
        ("num_nodes", (1,), 12),
    ],
)
def test_validate_finds_each_fault(name: str, index: tuple[int, ...], value: float) -> None:
    tree = example()
    validate(tree)
    field = getattr(tree, name).clone()
    field[index] = value
    with pytest.raises(ValueError, match="request"):
        validate(replace(tree, **{name: field}))


def test_validate_finds_siblings_with_one_token() -> None:
    tree = example()
    parents = tree.parent[0].tolist()
    sibling = next(i for i in range(2, tree.width) if parents[i] == 0)
    tokens = tree.tokens.clone()
    tokens[0, sibling] = tokens[0, 1]
    with pytest.raises(ValueError, match=f"request 0, node {sibling} "):
        validate(replace(tree, tokens=tokens))


def test_validate_finds_wrong_layouts() -> None:
    tree = example()
    with pytest.raises(ValueError, match="parent is"):
        validate(replace(tree, parent=tree.parent.long()))
    with pytest.raises(ValueError, match="ancestors is"):
        validate(replace(tree, ancestors=tree.ancestors.repeat(1, 1, 2)))
