"""Device groups use every GPU once, stay inside domains while they can and cross them least."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_ddtree.cluster.machine.topology import LinkKind, Topology
from sglang_ddtree.cluster.planning.groups import DeviceGroup, form_groups, peer_level
from unit.topology_files import machine, machines, read

# Text: (tp, replicas) to groups in rank order.
GROUPS = {
    "two_sockets_direct": {
        (4, 1): [(0, 1, 2, 3)],
        (4, 2): [(0, 1, 2, 3), (4, 5, 6, 7)],
        (8, 1): [(0, 1, 2, 3, 4, 5, 6, 7)],
        (1, 3): [(0,), (1,), (4,)],
    },
    "two_sockets_switches_ansi": {
        (2, 4): [(0, 1), (2, 3), (4, 5), (6, 7)],
        (4, 2): [(0, 1, 2, 3), (4, 5, 6, 7)],
    },
    "one_socket_switches": {(4, 2): [(0, 1, 2, 3), (4, 5, 6, 7)], (2, 2): [(0, 1), (2, 3)]},
    "all_sys_with_numa": {(4, 2): [(0, 1, 2, 3), (4, 5, 6, 7)]},
    "interleaved": {
        (4, 2): [(0, 2, 4, 6), (1, 3, 5, 7)],
        (8, 1): [(0, 2, 4, 6, 1, 3, 5, 7)],
    },
    "no_affinity_columns": {(4, 2): [(0, 1, 2, 3), (4, 5, 6, 7)]},
    "old_driver_devices_as_columns": {(4, 2): [(0, 1, 2, 3), (4, 5, 6, 7)]},
    "nics_and_legend": {(8, 1): [(0, 1, 2, 3, 4, 5, 6, 7)]},
    "nvswitch": {(8, 1): [(0, 1, 2, 3, 4, 5, 6, 7)], (4, 1): [(0, 1, 2, 3)]},
    "sixteen_two_sockets": {
        (8, 2): [tuple(range(8)), tuple(range(8, 16))],
        (4, 4): [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)],
        (16, 1): [tuple(range(16))],
    },
    "four_nodes_of_two": {(4, 1): [(0, 1, 2, 3)], (2, 4): [(0, 1), (2, 3), (4, 5), (6, 7)]},
    # The second group of four must straddle; it takes the whole smaller socket.
    "uneven_five_and_three": {
        (4, 2): [(0, 1, 2, 3), (4, 5, 6, 7)],
        (2, 3): [(0, 1), (2, 3), (5, 6)],
    },
    "four_on_one_socket": {(2, 2): [(0, 1), (2, 3)], (4, 1): [(0, 1, 2, 3)]},
    "vm_phb_no_affinity": {(4, 1): [(0, 1, 2, 3)]},
    "vm_all_sys_unknown": {(2, 2): [(0, 1), (2, 3)]},
    "one_gpu_empty_cells": {(1, 1): [(0,)]},
}


@pytest.mark.parametrize(
    ("name", "shape"), [(name, shape) for name, shapes in GROUPS.items() for shape in shapes]
)
def test_groups_of_known_machines(name: str, shape: tuple[int, int]) -> None:
    groups = form_groups(read(name), *shape)
    assert [group.gpus for group in groups] == GROUPS[name][shape]


def cost_of(topology: Topology, order: tuple[int, ...]) -> tuple[int, int]:
    """Ring and island crossings of a rank order, counted pair by pair."""
    domain = topology.domain_of
    n = len(order)
    ring = 0
    if n > 1:
        ring = sum(
            domain[a] != domain[b] for a, b in zip(order, order[1:] + order[:1], strict=True)
        )
    halves = (order[: n // 2], order[n // 2 :])
    island = sum(
        domain[a] != domain[b] for half in halves for i, a in enumerate(half) for b in half[:i]
    )
    return ring, island


def arrangements(counts: list[int], length: int) -> Iterator[tuple[int, ...]]:
    """All distinct sequences of `length` labels in which label i occurs counts[i] times."""
    if length == 0:
        yield ()
    for label, count in enumerate(counts):
        if count:
            rest = [n - (i == label) for i, n in enumerate(counts)]
            for tail in arrangements(rest, length - 1):
                yield (label, *tail)


def partitions(n: int, largest: int) -> Iterator[list[int]]:
    """Ways to write n as a sum of at most `largest` each, order aside."""
    if n == 0:
        yield []
    for part in range(min(n, largest), 0, -1):
        for rest in partitions(n - part, part):
            yield [part, *rest]


def fewest_crossings(counts: list[int]) -> tuple[int, int]:
    """Brute force over all orders of GPUs in domains of these sizes."""
    n = sum(counts)
    best = (n + 1, 0)
    for order in arrangements(counts, n):
        ring = sum(order[i] != order[i - 1] for i in range(n)) if n > 1 else 0
        if ring <= best[0]:
            halves = (order[: n // 2], order[n // 2 :])
            island = sum(a != b for half in halves for i, a in enumerate(half) for b in half[:i])
            best = min(best, (ring, island))
    return best


@pytest.mark.parametrize("n", range(1, 9))
def test_rank_order_crosses_least_for_all_domain_sizes(n: int) -> None:
    """Every way in which up to 8 GPUs can be spread over domains, against brute force."""
    for counts in partitions(n, n):
        labels = [label for label, count in enumerate(counts) for _ in range(count)]
        topology = machine(labels)
        (group,) = form_groups(topology, n)
        assert sorted(group.gpus) == list(range(n))
        found = cost_of(topology, group.gpus)
        assert found == fewest_crossings(counts), counts
        assert found == (group.crossings.ring, group.crossings.island)


@given(machines(max_gpus=6))
@settings(max_examples=30, deadline=None)
def test_rank_order_crosses_least_wherever_gpus_sit(topology: Topology) -> None:
    (group,) = form_groups(topology, len(topology.gpus))
    sizes = [len(domain.gpus) for domain in topology.domains]
    assert cost_of(topology, group.gpus) == fewest_crossings(sizes)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[Topology, int, int]:
    topology = draw(machines())
    tp = draw(st.integers(1, len(topology.gpus)))
    return topology, tp, draw(st.integers(1, len(topology.gpus) // tp))


@given(shapes())
@settings(max_examples=150, deadline=None)
def test_every_gpu_is_used_at_most_once(shape: tuple[Topology, int, int]) -> None:
    topology, tp, replicas = shape
    groups = form_groups(topology, tp, replicas)
    used = [gpu for group in groups for gpu in group.gpus]
    assert [len(group.gpus) for group in groups] == [tp] * replicas
    assert len(set(used)) == len(used)
    assert set(used) <= set(topology.indices)


@given(shapes())
@settings(max_examples=150, deadline=None)
def test_groups_straddle_only_when_they_must(shape: tuple[Topology, int, int]) -> None:
    topology, tp, replicas = shape
    groups = form_groups(topology, tp, replicas)
    inside = sum(len(domain.gpus) // tp for domain in topology.domains)
    assert sum(group.straddles for group in groups) == max(0, replicas - inside)
    for group in groups:
        assert group.straddles == (len({topology.domain_of[gpu] for gpu in group.gpus}) > 1)
    if replicas == 1:
        # One group: as few domains as the largest ones that hold it.
        sizes = sorted((len(domain.gpus) for domain in topology.domains), reverse=True)
        least = next(k for k in range(1, len(sizes) + 1) if sum(sizes[:k]) >= tp)
        assert len(groups[0].domains) == least


def test_near_gpus_come_together() -> None:
    topology = read("two_sockets_switches_ansi")
    for group in form_groups(topology, 2, 4):
        assert topology.widest_link(group.gpus) is LinkKind.PIX
    (four,) = form_groups(read("sixteen_two_sockets"), 4)
    assert read("sixteen_two_sockets").widest_link(four.gpus) is LinkKind.PIX


def test_eight_ranks_fill_the_islands_with_the_sockets() -> None:
    (group,) = form_groups(read("interleaved"), 8)
    assert (group.crossings.ring, group.crossings.island) == (2, 0)
    assert {frozenset(group.gpus[:4]), frozenset(group.gpus[4:])} == {
        frozenset({0, 2, 4, 6}),
        frozenset({1, 3, 5, 7}),
    }


@pytest.mark.parametrize(("tp", "replicas"), [(4, 3), (16, 1), (9, 1)])
def test_too_few_gpus_are_counted(tp: int, replicas: int) -> None:
    with pytest.raises(ValueError, match=f"needs {tp * replicas} GPUs, the machine has 8"):
        form_groups(read("two_sockets_direct"), tp, replicas)


def test_shapes_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        form_groups(read("two_sockets_direct"), 0)


@pytest.mark.parametrize(
    ("name", "tp", "level"),
    [
        ("two_sockets_direct", 4, "PHB"),
        ("two_sockets_direct", 8, "SYS"),
        ("four_on_one_socket", 4, "SYS"),
        ("two_sockets_switches_ansi", 2, None),
        ("nvswitch", 8, None),
    ],
)
def test_nccl_peer_level(name: str, tp: int, level: str | None) -> None:
    topology = read(name)
    group: DeviceGroup = form_groups(topology, tp)[0]
    assert peer_level(topology, group.gpus) == level
