"""Growth against the heap, and the promises that the rest of the project builds on."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_ddtree.tree import Candidates, DraftTree, GrowthPolicy, grow, validate
from sglang_ddtree.tree.oracle import Node
from unit.strategies import Draft, drafts, live_nodes, properties

BUDGETS = st.one_of(st.integers(0, 40), st.integers(0, 255))


def normal_draft(block: int, topk: int, bs: int = 1, seed: int = 0) -> Draft:
    logits = torch.randn(bs, block - 1, 64, generator=torch.Generator().manual_seed(seed)) * 3
    return Draft(Candidates.from_logits(logits, topk), torch.arange(bs), None)


@given(drafts(), BUDGETS, st.booleans())
@properties(300)
def test_equals_the_heap_node_by_node(draft: Draft, budget: int, spine: bool) -> None:
    tree = draft.grow(budget, spine)
    validate(tree)
    assert tree.tokens.shape == (draft.bs, budget + 1)
    assert torch.equal(tree.tokens[:, 0], draft.root_tokens)
    for request in range(draft.bs):
        assert live_nodes(tree, request) == draft.grow_oracle(request, budget, spine)


@pytest.mark.parametrize("block", range(2, 17))
@pytest.mark.parametrize("spine", [True, False])
def test_every_budget_is_a_prefix_of_the_largest(block: int, spine: bool) -> None:
    draft = normal_draft(block, topk=8, seed=block)
    largest = live_nodes(draft.grow(255, spine), 0)
    assert largest == draft.grow_oracle(0, 255, spine)
    for budget in range(255):
        assert live_nodes(draft.grow(budget, spine), 0) == largest[: budget + 1]


@given(drafts(), BUDGETS, BUDGETS, st.booleans())
@properties(100)
def test_more_budget_only_adds_nodes(draft: Draft, one: int, other: int, spine: bool) -> None:
    small, large = (draft.grow(budget, spine) for budget in sorted((one, other)))
    assert (small.num_nodes <= large.num_nodes).all()
    for request in range(draft.bs):
        nodes = live_nodes(small, request)
        assert live_nodes(large, request)[: len(nodes)] == nodes


def chain_of(draft: Draft, request: int) -> list[int]:
    """The drafter's own chain: the likeliest token of each depth up to where there is none."""
    depths = draft.candidates.depths
    if draft.max_depth is not None:
        depths = min(depths, int(draft.max_depth[request]))
    tokens = []
    for depth in range(depths):
        if draft.candidates.log_probs[request, depth, 0] == -math.inf:
            break
        tokens.append(int(draft.candidates.tokens[request, depth, 0]))
    return tokens


@given(drafts(conditional=False), BUDGETS)
@properties(100)
def test_the_spine_is_the_chain_at_indices_from_0(draft: Draft, budget: int) -> None:
    tree = draft.grow(budget, spine=True)
    for request in range(draft.bs):
        chain = chain_of(draft, request)[:budget]
        nodes = live_nodes(tree, request)[: len(chain) + 1]
        assert [node.token for node in nodes[1:]] == chain
        assert [node.parent for node in nodes] == list(range(-1, len(chain)))


@given(drafts(), st.data())
@properties(80)
def test_a_budget_up_to_the_block_is_a_chain(draft: Draft, data: st.DataObject) -> None:
    tree = draft.grow(data.draw(st.integers(0, draft.candidates.depths)), spine=True)
    assert_chain(tree)


@given(drafts(conditional=False), BUDGETS, st.booleans())
@properties(50)
def test_one_candidate_makes_a_chain(draft: Draft, budget: int, spine: bool) -> None:
    first = Candidates(draft.candidates.tokens[..., :1], draft.candidates.log_probs[..., :1])
    tree = grow(first, draft.root_tokens, GrowthPolicy(budget, spine), max_depth=draft.max_depth)
    assert_chain(tree)
    for request in range(draft.bs):
        tokens = [node.token for node in live_nodes(tree, request)[1:]]
        assert tokens == chain_of(draft, request)[:budget]


def assert_chain(tree: DraftTree) -> None:
    mask = tree.ancestor_mask()
    for request, live in enumerate(tree.num_nodes.tolist()):
        assert tree.parent[request, :live].tolist() == list(range(-1, live - 1))
        assert torch.equal(mask[request, :live, :live], torch.ones(live, live).tril().bool())


def test_an_unlikely_spine_comes_first_all_the_same() -> None:
    # Past depth 1 the chain is so unlikely that best-first search alone would never follow it.
    log_probs = torch.tensor([[[-0.1, -2.5], [-90.0, -91.0], [-90.0, -91.0]]])
    tokens = torch.tensor([[[1, 2], [3, 4], [5, 6]]])
    tree = grow(Candidates(tokens, log_probs), torch.tensor([0]), GrowthPolicy(5))
    assert tree.tokens.tolist() == [[0, 1, 3, 5, 2, 4]]
    assert tree.parent.tolist() == [[-1, 0, 1, 2, 0, 1]]


def test_what_is_kept_is_the_likeliest() -> None:
    draft = normal_draft(block=5, topk=3)
    log_probs = draft.candidates.log_probs[0]
    every = [0.0]
    level = every
    for depth in range(4):
        level = [mass + float(x) for mass in level for x in log_probs[depth]]
        every = every + level
    tree = draft.grow(40, spine=False)
    kept = sorted(tree.log_prob[0].tolist(), reverse=True)
    assert kept == pytest.approx(sorted(every, reverse=True)[:41], abs=1e-5)


@given(drafts(), BUDGETS, st.booleans(), st.data())
@properties(60)
def test_no_node_lies_deeper_than_allowed(
    draft: Draft, budget: int, spine: bool, data: st.DataObject
) -> None:
    limits = data.draw(st.lists(st.integers(0, 16), min_size=draft.bs, max_size=draft.bs))
    tree = grow(
        draft.candidates,
        draft.root_tokens,
        GrowthPolicy(budget, spine),
        max_depth=torch.tensor(limits, dtype=torch.int32),
    )
    validate(tree)
    assert (tree.depth <= torch.tensor(limits).unsqueeze(1)).all()
    assert all(tree.num_nodes[i] == 1 for i, limit in enumerate(limits) if limit == 0)


@given(drafts(max_bs=4), BUDGETS, st.booleans())
@properties(60)
def test_requests_do_not_depend_on_their_batch(draft: Draft, budget: int, spine: bool) -> None:
    batch, transitions = draft.grow(budget, spine), draft.candidates.transitions
    for i in range(draft.bs):
        row = slice(i, i + 1)
        candidates = Candidates(
            draft.candidates.tokens[row],
            draft.candidates.log_probs[row],
            None if transitions is None else transitions[row],
        )
        max_depth = None if draft.max_depth is None else draft.max_depth[row]
        alone = Draft(candidates, draft.root_tokens[row], max_depth).grow(budget, spine)
        assert torch.equal(batch.ancestors[row], alone.ancestors)
        assert live_nodes(batch, i) == live_nodes(alone, 0)


@pytest.mark.parametrize("spine", [True, False])
def test_nan_and_positive_log_probs_leave_a_valid_tree(spine: bool) -> None:
    draft = normal_draft(block=6, topk=4, bs=2)
    log_probs = draft.candidates.log_probs.clone()
    log_probs[0, 2] = math.nan
    log_probs[1, 1, 0] = 1e-4
    log_probs[1, 3, 3] = math.inf
    tree = grow(
        Candidates(draft.candidates.tokens, log_probs), draft.root_tokens, GrowthPolicy(40, spine)
    )
    validate(tree)
    assert tree.depth[0].max() == 2
    assert tree.depth[1].max() == 5


def test_a_candidate_without_probability_never_becomes_a_node() -> None:
    log_probs = torch.full((1, 3, 4), -math.inf)
    log_probs[0, 0, :2] = math.log(0.5)
    log_probs[0, 1, 0] = 0.0
    candidates = Candidates(torch.arange(12).view(1, 3, 4), log_probs, torch.zeros(1, 2, 4, 4))
    tree = grow(candidates, torch.tensor([99]), GrowthPolicy(20, spine=False))
    half = float(log_probs[0, 0, 0])
    assert live_nodes(tree, 0)[1:] == [
        Node(token=0, parent=0, depth=1, log_prob=half),
        Node(token=1, parent=0, depth=1, log_prob=half),
        Node(token=4, parent=1, depth=2, log_prob=half),
        Node(token=4, parent=2, depth=2, log_prob=half),
    ]


def test_transitions_choose_the_chain() -> None:
    # Marginally 0 leads at both depths; after candidate 0, candidate 1 does.
    log_probs = torch.tensor([[[0.6, 0.4], [0.5, 0.5]]]).log()
    transitions = torch.tensor([[[[0.2, 0.8], [0.9, 0.1]]]]).log()
    candidates = Candidates(torch.tensor([[[10, 11], [20, 21]]]), log_probs, transitions)
    tree = grow(candidates, torch.tensor([0]), GrowthPolicy(6))
    assert tree.tokens.tolist() == [[0, 10, 21, 11, 20, 20, 21]]
    assert tree.parent.tolist() == [[-1, 0, 1, 0, 3, 1, 3]]
    expected = torch.tensor([1, 0.6, 0.48, 0.4, 0.36, 0.12, 0.04])
    torch.testing.assert_close(tree.log_prob[0].exp(), expected)


def test_an_empty_batch_is_a_tree() -> None:
    validate(normal_draft(block=4, topk=2, bs=0).grow(9, spine=True))


def test_bad_arguments_are_refused() -> None:
    draft = normal_draft(block=4, topk=2, bs=2)
    with pytest.raises(ValueError, match="budget"):
        draft.grow(-1, spine=True)
    with pytest.raises(ValueError, match="root_tokens"):
        grow(draft.candidates, torch.zeros(3, dtype=torch.int64), GrowthPolicy(3))
