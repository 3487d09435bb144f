"""Recurrent layers of the target: checkpoints, links, memory."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_ddtree.tree import Acceptance, DraftTree
from unit.strategies import properties, random_trees

copies = importlib.import_module("sglang_ddtree.engine.recurrent.cache_copies")
memory = importlib.import_module("sglang_ddtree.engine.recurrent.memory")
snapshots = importlib.import_module("sglang_ddtree.engine.recurrent.snapshots")


@given(
    prefix=st.integers(0, 300), length=st.integers(0, 15), interval=st.sampled_from([16, 64, 100])
)
@properties(200)
def test_boundary_nodes(prefix: int, length: int, interval: int) -> None:
    path = [7 * j for j in range(16)]
    path = [path[min(j, length)] for j in range(16)]
    accepted = Acceptance(
        path=torch.tensor([path]),
        length=torch.tensor([length], dtype=torch.int32),
        leaf=torch.tensor([path[-1]]),
        tokens=torch.zeros(1, 16, dtype=torch.int64),
        bonus=torch.zeros(1, dtype=torch.int64),
    )
    (node,) = copies.boundary_nodes(accepted, torch.tensor([prefix]), interval).tolist()
    # The text after node path[j] has prefix + j + 1 tokens.
    at = [path[j] for j in range(length + 1) if (prefix + j + 1) % interval == 0]
    assert node == (at[-1] if at else -1)


@given(random_trees(40))
@properties(100)
def test_links(tree: DraftTree) -> None:
    child, sibling = snapshots.links(tree.parent)
    assert child.dtype == sibling.dtype == torch.int32
    for row, parents in enumerate(tree.parent.tolist()):
        parents = [-1] + [max(up, 0) for up in parents[1:]]  # padding hangs from the root
        families: dict[int, list[int]] = {}
        for node, up in enumerate(parents):
            families.setdefault(up, []).append(node)
        for node in range(len(parents)):
            assert child[row, node] == families.get(node, [-1])[0]
        for family in families.values():
            assert sibling[row, family].tolist() == [*family[1:], -1]


# Qwen3.6-27B, whole: 48 layers, 16 key and 48 value heads of 128, windows of 3 inputs.
PARAMS = SimpleNamespace(
    shape=SimpleNamespace(conv=[(10240, 3)], temporal=(48, 128, 128)),
    layers=list(range(48)),
    mamba_cache_per_req=48 * (48 * 128 * 128 * 4 + 10240 * 3 * 2),
)


def test_shape_of_a_large_model() -> None:
    shape = memory.shape_of(PARAMS)
    assert (shape.k_heads, shape.v_heads, shape.k_dim, shape.v_dim) == (16, 48, 128, 128)
    assert (shape.channels, shape.kernel_size) == (10240, 4)


def test_stash_is_a_small_part_of_snapshots() -> None:
    stash = memory.stash_bytes(PARAMS, 65, torch.bfloat16)
    keys, updates, decay, inputs = 16 * 128 * 4, 48 * 128 * 4, 48 * 4, 10240 * 2
    assert stash == 48 * 65 * (keys + updates + decay + inputs)
    assert memory.snapshot_bytes(PARAMS, 65) > 40 * stash


@given(
    wanted=st.integers(1, 60),
    memory_mb=st.integers(1, 2000),
    state=st.integers(1, 20),
    stash=st.integers(0, 20),
    slots=st.integers(1, 5),
    share=st.sampled_from([0.25, 0.5, 0.9]),
)
@properties(300)
def test_requests_that_fit(
    wanted: int, memory_mb: int, state: int, stash: int, slots: int, share: float
) -> None:
    def fits(count: int) -> bool:
        for_states = share * (memory_mb - count * stash)
        return for_states >= (count * slots + 1) * state  # one slot is padding

    count = memory.requests_that_fit(wanted, memory_mb, state, stash, slots, share)
    assert 1 <= count <= wanted
    assert count == 1 or fits(count)
    assert count == wanted or not fits(count + 1)
