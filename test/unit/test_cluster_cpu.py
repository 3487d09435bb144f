"""Cores for ranks without GPUs, and the servers that are started on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_ddtree import pairs
from sglang_ddtree.cluster.launch.environment import Endpoints
from sglang_ddtree.cluster.launch.service import bundled_pair, cpu_service
from sglang_ddtree.cluster.machine.cpu_machine import node_of, spread_ranks, usable_nodes

TWO_NODES = {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}


def sysfs(folder: Path, nodes: dict[int, str]) -> Path:
    for node, cores in nodes.items():
        (folder / f"devices/system/node/node{node}").mkdir(parents=True)
        (folder / f"devices/system/node/node{node}/cpulist").write_text(cores + "\n")
    return folder


def test_nodes_of_a_machine(tmp_path: Path) -> None:
    root = sysfs(tmp_path, {0: "0-3,8", 1: "4-7", 2: ""})
    everything = frozenset(range(16))
    assert usable_nodes(root, everything) == {0: (0, 1, 2, 3, 8), 1: (4, 5, 6, 7)}
    # A container with the cores of one node, and a kernel without NUMA support.
    assert usable_nodes(root, frozenset({5, 6})) == {1: (5, 6)}
    assert usable_nodes(tmp_path / "none", frozenset({1, 0})) == {0: (0, 1)}


def test_ranks_are_spread_over_nodes() -> None:
    assert spread_ranks(TWO_NODES, 2) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert spread_ranks(TWO_NODES, 4) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert spread_ranks({0: (0, 1)}, 4) == ((0,), (1,), (0,), (1,))
    assert spread_ranks({0: (0, 1, 2)}, 2) == ((0,), (1, 2))


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.integers(1, 32),
)
@settings(deadline=None)
def test_every_rank_is_on_one_node_and_shares_only_when_it_must(
    sizes: list[int], ranks: int
) -> None:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    nodes = {
        i: tuple(range(start, start + size))
        for i, (start, size) in enumerate(zip(starts, sizes, strict=True))
    }
    groups = spread_ranks(nodes, ranks)
    assert len(groups) == ranks
    owners = [node_of(group, nodes) for group in groups]
    assert None not in owners
    assert owners == sorted(owners)  # consecutive ranks together
    for node, cores in nodes.items():
        placed = zip(groups, owners, strict=True)
        mine = [core for group, at in placed if at == node for core in group]
        if owners.count(node) <= len(cores):
            assert len(set(mine)) == len(mine)
        assert all(cores.count(core) for core in mine)


def test_two_replicas_of_the_bundled_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_ddtree.cluster.launch.service.usable_nodes", lambda: TWO_NODES)
    pair = bundled_pair("tiny-dense")
    assert pair is not None
    endpoints = Endpoints(port=5000, model_path=pair[0], draft_path=pair[1])
    service = cpu_service(endpoints, 2, 2, 31, ["--dtype", "float32"])
    first, second = service.servers
    assert (first.ranks, second.ranks) == (((0, 1), (2, 3)), ((4, 5), (6, 7)))
    assert second.cores == (4, 5, 6, 7)
    assert {s.name: s.value for s in second.command.settings} == {
        "SGLANG_CPU_OMP_THREADS_BIND": "4-5|6-7",
        "OMP_NUM_THREADS": "2",
    }
    assert first.command.argv[-2:] == ("--dtype", "float32")
    assert "--speculative-ddtree-budget" in first.command.argv
    assert (first.url, second.url) == ("http://127.0.0.1:5001", "http://127.0.0.1:5002")
    assert service.url == "http://127.0.0.1:5000"
    assert service.router is not None
    assert first.url in service.router.argv


def test_one_server_needs_no_router_and_plain_decoding_no_drafter() -> None:
    service = cpu_service(Endpoints(model_path="m", draft_path="d"), 1, 1, 0, [])
    assert service.router is None
    assert service.servers[0].url == service.url
    assert not [word for word in service.servers[0].command.argv if "speculative" in word]
    assert bundled_pair("") is None
    assert bundled_pair("no-such-pair") is None


def test_a_pair_without_its_checkout_says_where_it_lies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pairs, "FOLDER", tmp_path / "no-checkout")
    with pytest.raises(pairs.PairNotFoundError, match="run this from a checkout"):
        bundled_pair("tiny-dense")


def test_every_pair_of_the_checkout_is_known_by_name() -> None:
    found = {folder.parent.name for folder in pairs.FOLDER.glob("*/drafter")}
    assert found == set(pairs.NAMES)
