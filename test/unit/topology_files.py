"""The topology texts of data/topology, and random machines for property tests."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from sglang_ddtree.cluster.machine.topology import Gpu, Link, LinkKind, Topology
from sglang_ddtree.cluster.machine.topology_text import parse_topology

DIRECTORY = Path(__file__).parent / "data" / "topology"
NAMES = tuple(sorted(path.stem for path in DIRECTORY.glob("*.txt")))
RTX_PRO_6000 = 97_887 << 20


def read(name: str) -> Topology:
    """The topology of a text of data/topology."""
    path = DIRECTORY / f"{name}.txt"
    return parse_topology(path.read_text(), path.name)


def machine(domain_of: list[int], near: LinkKind = LinkKind.NODE) -> Topology:
    """GPUs 0..n-1 in given domains, `near` links inside them and SYS between."""
    pairs = [(a, b) for b in range(len(domain_of)) for a in range(b)]
    return Topology(
        gpus=tuple(Gpu(i, numa_nodes=(domain,)) for i, domain in enumerate(domain_of)),
        links={
            (a, b): Link(near if domain_of[a] == domain_of[b] else LinkKind.SYS) for a, b in pairs
        },
    )


@st.composite
def machines(draw: st.DrawFn, max_gpus: int = 16) -> Topology:
    """1 to `max_gpus` GPUs scattered over 1 to 4 domains, with mixed links inside them and,
    at times, without affinity."""
    count = draw(st.integers(1, max_gpus))
    domain_of = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    inside = st.sampled_from([LinkKind.PIX, LinkKind.PXB, LinkKind.PHB, LinkKind.NODE])
    known = draw(st.booleans())
    links = {}
    for b in range(count):
        for a in range(b):
            kind = draw(inside) if domain_of[a] == domain_of[b] else LinkKind.SYS
            links[a, b] = Link(kind)
    nodes = [(domain,) if known else () for domain in domain_of]
    return Topology(tuple(Gpu(i, numa_nodes=node) for i, node in enumerate(nodes)), links)
