"""The tree form of the gated delta rule against a walk from the parent's state."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_ddtree.ops.gdn_tree import (
    RecurrentShape,
    TreeRecurrenceMetadata,
    path_state,
    tree_recurrence,
)
from sglang_ddtree.tree import DraftTree
from unit.gdn_tree_cases import (
    DECAYS,
    SMALL,
    Case,
    case_of,
    cases,
    grown_tree,
    relative,
)
from unit.strategies import properties, random_trees, tree_of
from unit.test_tree_dispatch import record


def check(case: Case, tolerance: float, nodes: list[int], **options: bool) -> None:
    """Outputs of all nodes, and states after the given ones (wrapped to the width)."""
    result = case.run(**options)
    walks = [case.walk(request, **options) for request in range(case.tree.bs)]
    for request, (out, _) in enumerate(walks):
        assert relative(result.out[request], out) < tolerance
    for index in nodes:
        # Another node for each request of the batch.
        node = torch.tensor([(index + 7 * r) % case.tree.width for r in range(case.tree.bs)])
        state = case.state_after(result, node)
        for request, (_, states) in enumerate(walks):
            assert relative(state[request], states[node[request]]) < tolerance


@given(cases(torch.float64), st.lists(st.integers(0, 254), min_size=2, max_size=2))
@properties(120)
def test_equals_the_walk_in_float64(case: Case, nodes: list[int]) -> None:
    check(case, 1e-10, [0, *nodes])


@given(cases(torch.float32), st.lists(st.integers(0, 254), min_size=2, max_size=2))
@properties(80)
def test_equals_the_walk_in_float32(case: Case, nodes: list[int]) -> None:
    check(case, 1e-4, [0, *nodes])


@given(cases(torch.float64))
@properties(30)
def test_without_the_delta_term_it_is_a_linear_scan(case: Case) -> None:
    """Mamba2: the keys have any norm, and the update does not look at the state."""
    check(case, 1e-10, [0, 50], l2norm=False, delta=False)


@pytest.mark.parametrize("channel_decay", [False, True])
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_255_nodes_of_depth_16(
    channel_decay: bool, decay: str, dtype: torch.dtype, tolerance: float
) -> None:
    """Three different trees, the last with few live nodes."""
    tree = grown_tree(bs=3, budget=254, depths=16)
    assert tree.width == 255
    assert tree.depth.amax(1).tolist() == [16, 16, 1]
    case = case_of(tree, replace(SMALL, channel_decay=channel_decay), dtype, decay, seed=3)
    check(case, tolerance, [0, 1, 16, 100, 254])


@pytest.mark.parametrize("channel_decay", [False, True])
@pytest.mark.parametrize("decay", ["slow", "mixed", "resets"])
def test_a_chain_of_255_nodes_keeps_its_digits(channel_decay: bool, decay: str) -> None:
    tree = tree_of([list(range(-1, 254))], [[0] * 255], 255)
    case = case_of(tree, replace(SMALL, channel_decay=channel_decay), torch.float32, decay, seed=4)
    check(case, 2e-6, [0, 128, 253, 254])


@pytest.mark.parametrize("channel_decay", [False, True])
def test_commit_of_every_node(channel_decay: bool) -> None:
    case = case_of(
        grown_tree(bs=2, budget=40),
        replace(SMALL, channel_decay=channel_decay),
        torch.float64,
        "fast",
        seed=5,
    )
    check(case, 1e-10, list(range(case.tree.width)))


def test_heads_as_wide_as_the_models() -> None:
    """128 x 128 states and three v heads to a k head, as in Qwen3.6-27B."""
    shape = RecurrentShape(k_heads=2, v_heads=6, k_dim=128, v_dim=128)
    case = case_of(grown_tree(bs=1, budget=63), shape, torch.float32, "slow", seed=6)
    check(case, 1e-5, [0, 15, 63])


@given(random_trees(60), st.booleans(), st.sampled_from(DECAYS), st.integers(0, 2**32))
@properties(60)
def test_nothing_leaks_between_branches(
    tree: DraftTree, channel_decay: bool, decay: str, seed: int
) -> None:
    """Other inputs at all nodes off a path change no bit of the outputs and states on it."""
    case = case_of(tree, replace(SMALL, channel_decay=channel_decay), torch.float32, decay, seed)
    other = case_of(tree, replace(SMALL, channel_decay=channel_decay), torch.float32, decay, ~seed)
    node = torch.tensor([(seed >> r) % n for r, n in enumerate(tree.num_nodes.tolist())])
    path = case.metadata.on_path(node)
    mixed = {
        name: torch.where(
            path.view(*path.shape, *[1] * (getattr(case, name).dim() - 2)),
            getattr(case, name),
            getattr(other, name),
        )
        for name in ("q", "k", "v", "log_decay", "beta")
    }
    before, after = case.run(), replace(case, **mixed).run()
    assert torch.equal(before.out[path], after.out[path])
    assert torch.equal(case.state_after(before, node), case.state_after(after, node))


@given(random_trees(60), st.sampled_from(DECAYS), st.integers(0, 2**32), st.data())
@properties(60)
def test_siblings_change_nothing(
    tree: DraftTree, decay: str, seed: int, data: st.DataObject
) -> None:
    """A tree cut down to a subset of its nodes gives those nodes the same outputs."""
    case = case_of(tree, SMALL, torch.float64, decay, seed)
    parents = tree.parent[0].tolist()
    wanted = data.draw(st.sets(st.integers(0, int(tree.num_nodes[0]) - 1), min_size=1))
    kept = sorted(
        {j for i in wanted for j in range(tree.width) if case.metadata.ancestors[0, i, j]}
    )
    cut = [kept.index(parents[i]) if parents[i] >= 0 else -1 for i in kept]
    small = tree_of([cut], [[0] * len(kept)], len(kept))
    names = ("q", "k", "v", "log_decay", "beta")
    alone = replace(
        case,
        tree=small,
        metadata=TreeRecurrenceMetadata.of(small, 4),
        state=case.state[:1],
        **{name: getattr(case, name)[:1, kept] for name in names},
    )
    out = case.run().out[0, kept]
    assert (alone.run().out[0] - out).abs().max() <= 1e-12 * out.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channel_decay", [False, True])
def test_half_precision_keeps_a_float32_stash(dtype: torch.dtype, channel_decay: bool) -> None:
    shape = replace(SMALL, channel_decay=channel_decay)
    case = case_of(grown_tree(bs=2, budget=60), shape, dtype, "fast", seed=7)
    result = case.run()
    assert result.out.dtype == dtype
    assert {x.dtype for x in result[1:]} == {torch.float32}
    node = torch.tensor([60, 3])
    state = case.state_after(result, node)
    assert state.dtype == torch.float32
    for request in range(2):
        out, states = case.walk(request)
        assert relative(result.out[request], out) < 2 * torch.finfo(dtype).eps
        assert relative(state[request], states[node[request]]) < 1e-5


def test_a_bfloat16_pool_is_rounded_once() -> None:
    case = case_of(grown_tree(bs=1, budget=20), SMALL, torch.float32, "slow", seed=8)
    case = replace(case, state=case.state.bfloat16())
    node = torch.tensor([20])
    state = case.state_after(case.run(), node)
    assert state.dtype == torch.bfloat16
    assert relative(state[0], case.walk(0)[1][20]) < torch.finfo(torch.bfloat16).eps


def test_commit_spans_layers_and_minus_one_commits_nothing() -> None:
    tree = grown_tree(bs=3, budget=30)
    layers = [case_of(tree, SMALL, torch.float64, "fast", seed) for seed in (9, 10)]
    results = [case.run() for case in layers]
    node = torch.tensor([12, -1, 0])
    together = path_state(
        torch.stack([case.state for case in layers]),
        *(torch.stack(parts) for parts in list(zip(*results, strict=True))[1:]),
        layers[0].metadata,
        node,
    )
    for case, result, state in zip(layers, results, together, strict=True):
        assert torch.equal(state, case.state_after(result, node))
        assert torch.equal(state[1], case.state[1])


@pytest.mark.parametrize("channel_decay", [False, True])
def test_no_value_is_read_back(channel_decay: bool) -> None:
    """The same operations whatever the batch and the width, and none that waits for a device."""

    def run(bs: int, budget: int) -> list[str]:
        shape = replace(SMALL, channel_decay=channel_decay)
        case = case_of(grown_tree(bs, budget), shape, torch.float32, "fast", seed=11)
        node = torch.zeros(bs, dtype=torch.int64)

        def step() -> None:
            metadata = TreeRecurrenceMetadata.of(case.tree, 4)
            case.state_after(replace(case, metadata=metadata).run(), node)

        recorder = record(step)
        assert recorder.syncs == []
        return recorder.operations

    assert run(2, 15) == run(3, 100)


def test_an_empty_batch() -> None:
    case = case_of(grown_tree(bs=1, budget=5), SMALL, torch.float32, "slow", seed=12)
    names = ("q", "k", "v", "log_decay", "beta", "state")
    metadata = TreeRecurrenceMetadata(case.metadata.ancestors[:0], case.metadata.taps[:0])
    empty = replace(case, metadata=metadata, **{name: getattr(case, name)[:0] for name in names})
    result = empty.run()
    assert result.out.shape == (0, 6, 3, 4)
    assert empty.state_after(result, torch.zeros(0, dtype=torch.int64)).shape == (0, 3, 4, 8)


def test_v_heads_must_group_over_k_heads() -> None:
    case = case_of(grown_tree(bs=1, budget=5), SMALL, torch.float32, "slow", seed=13)
    k = case.k.repeat(1, 1, 2, 1)
    with pytest.raises(ValueError, match="3 v heads are no multiple of 2 k heads"):
        tree_recurrence(k, k, case.v, case.log_decay, case.beta, case.state, case.metadata)
