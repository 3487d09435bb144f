"""Device groups: which GPUs form a tensor-parallel group, and in which rank order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from sglang_ddtree.cluster.machine.topology import LinkKind, Topology

_EXHAUSTIVE = 20_000  # subsets of a domain that are compared before falling back to nearest first


@dataclass(frozen=True)
class Crossings:
    """How often collectives of one rank order leave a domain.

    ring: neighbours on the ring rank 0, 1, ..., n-1, 0 that are in different domains.
    island: pairs of ranks of one half, 0..n/2-1 or n/2..n-1, in different domains: what the
    decomposition into two islands (4 + 4 for eight ranks; FlashInfer's ``pcie_ipc``,
    srt/distributed/device_communicators/pcie_ipc_ar.py:11@0.5.23) puts on the socket link beside
    its one exchange.
    """

    ring: int
    island: int


@dataclass(frozen=True)
class DeviceGroup:
    """GPUs of one replica in rank order; `domains` are the positions of those they touch."""

    gpus: tuple[int, ...]
    domains: tuple[int, ...]
    crossings: Crossings

    @property
    def tp(self) -> int:
        """Number of ranks."""
        return len(self.gpus)

    @property
    def straddles(self) -> bool:
        """Whether ranks are in different domains."""
        return len(self.domains) > 1


def crossings(labels: Sequence[int]) -> Crossings:
    """Crossings of a rank order, given as the domain of each rank."""
    n = len(labels)
    half = n // 2
    return Crossings(
        ring=sum(labels[i] != labels[(i + 1) % n] for i in range(n)) if n > 1 else 0,
        island=sum(
            labels[i] != labels[j]
            for part in (range(half), range(half, n))
            for i, j in combinations(part, 2)
        ),
    )


def form_groups(topology: Topology, tp: int, replicas: int = 1) -> tuple[DeviceGroup, ...]:
    """`replicas` disjoint groups of `tp` GPUs.

    A group straddles domains only once no domain has `tp` GPUs left, and then touches as few
    domains as it can. Groups inside domains are spread over these. Inside a domain, GPUs with
    near links (NVLink, one switch) come together.

    Raises ValueError where the machine has too few GPUs.
    """
    if tp < 1 or replicas < 1:
        raise ValueError(f"need a positive tp and number of replicas, got {tp} and {replicas}")
    available = len(topology.gpus)
    if tp * replicas > available:
        raise ValueError(
            f"{replicas} x TP{tp} needs {replicas * tp} GPUs, the machine has {available}"
        )
    free = [list(domain.gpus) for domain in topology.domains]
    groups = []
    for _ in range(replicas):
        # max() keeps the first of equals, so that groups start in the first domain.
        home = max(free, key=len)
        if len(home) >= tp:
            members = _nearest(topology, home, tp)
        else:
            members = _spread(topology, free, tp)
        for domain in free:
            domain[:] = [gpu for gpu in domain if gpu not in members]
        groups.append(_ordered(topology, members))
    return tuple(sorted(groups, key=lambda group: min(group.gpus)))


def _spread(topology: Topology, free: list[list[int]], tp: int) -> tuple[int, ...]:
    """GPUs of as few domains as possible: the fullest ones whole, of the last what is missing."""
    members: list[int] = []
    for domain in sorted(free, key=len, reverse=True):
        members += _nearest(topology, domain, min(len(domain), tp - len(members)))
    return tuple(members)


def _nearest(topology: Topology, gpus: Sequence[int], count: int) -> tuple[int, ...]:
    """The `count` GPUs with the smallest sum of link distances, the first such in index order."""

    def spread(members: Sequence[int]) -> int:
        return sum(topology.link(a, b).kind for a, b in combinations(members, 2))

    if count in (0, len(gpus)):
        return tuple(gpus[:count])
    subsets = 1
    for i in range(count):
        subsets = subsets * (len(gpus) - i) // (i + 1)
    if subsets <= _EXHAUSTIVE:
        return min(combinations(gpus, count), key=spread)
    return min((_chain(topology, gpus, first)[:count] for first in gpus), key=spread)


def _ordered(topology: Topology, members: Sequence[int]) -> DeviceGroup:
    """Rank order with the fewest ring crossings, and of those the fewest island crossings.

    A ring over d > 1 domains crosses at least d times, and d times only where every domain is one
    arc of it. So all best orders are found among the arrangements of whole domains around the
    ring, turned by every offset.
    """
    domain_of = topology.domain_of
    arcs: dict[int, tuple[int, ...]] = {}
    for gpu in sorted(members):
        arcs[domain_of[gpu]] = (*arcs.get(domain_of[gpu], ()), gpu)
    arcs = {domain: _chain(topology, gpus, gpus[0]) for domain, gpus in arcs.items()}
    n = len(members)
    best: tuple[tuple[int, int], tuple[int, ...]] | None = None
    for order in _arrangements(tuple(arcs), {domain: len(gpus) for domain, gpus in arcs.items()}):
        ring = [gpu for domain in order for gpu in arcs[domain]]
        for offset in range(n if len(arcs) > 1 else 1):
            turned = tuple(ring[offset:] + ring[:offset])
            count = crossings([domain_of[gpu] for gpu in turned])
            if best is None or (count.ring, count.island) < best[0]:
                best = ((count.ring, count.island), turned)
    assert best is not None
    return DeviceGroup(best[1], tuple(sorted(arcs)), Crossings(*best[0]))


def _arrangements(
    domains: tuple[int, ...], sizes: dict[int, int]
) -> list[tuple[int, ...]] | tuple[tuple[int, ...], ...]:
    """Orders of domains around a ring that can differ in crossings, the given one first.

    Only the sizes matter, so of orders with the same sequence of sizes one is enough.
    """
    seen: dict[tuple[int, ...], tuple[int, ...]] = {}
    if len(domains) > 8 or len(set(sizes.values())) == 1:
        return (domains,)
    for order in permutations(domains[1:]):
        full = (domains[0], *order)
        seen.setdefault(tuple(sizes[domain] for domain in full), full)
    return list(seen.values())


def _chain(topology: Topology, gpus: Sequence[int], first: int) -> tuple[int, ...]:
    """All of `gpus` from `first` on, each next one the nearest to the last."""
    left = [gpu for gpu in gpus if gpu != first]
    chain = [first]
    while left:
        nearest = min(left, key=lambda gpu: (topology.link(chain[-1], gpu).kind, gpu))
        left.remove(nearest)
        chain.append(nearest)
    return tuple(chain)


def peer_level(topology: Topology, gpus: Sequence[int]) -> str | None:
    """The least ``NCCL_P2P_LEVEL`` that lets all pairs of a group use peer access.

    None where NCCL's own default does: NVLink, or PCIe without a host bridge between.
    """
    widest = topology.widest_link(gpus)
    if widest <= LinkKind.PXB:
        return None
    return "PHB" if widest is LinkKind.PHB else "SYS"
