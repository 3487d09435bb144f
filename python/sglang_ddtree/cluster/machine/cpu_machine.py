"""NUMA nodes of this machine's cores, and cores for ranks that run on them without a GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sglang_ddtree.cluster.machine.cores import parse_cores


def usable_nodes(
    sysfs: Path = Path("/sys"), allowed: frozenset[int] | None = None
) -> dict[int, tuple[int, ...]]:
    """NUMA node to those of its cores that this process may use.

    allowed: by default the affinity of this process, which a container or ``taskset`` narrows.
    A kernel without NUMA support has one node, 0.
    """
    allowed = frozenset(os.sched_getaffinity(0)) if allowed is None else allowed
    found = {}
    for folder in (sysfs / "devices/system/node").glob("node[0-9]*"):
        text = (folder / "cpulist").read_text().strip()
        cores = tuple(core for core in (parse_cores(text) if text else ()) if core in allowed)
        if cores:
            found[int(folder.name.removeprefix("node"))] = cores
    return dict(sorted(found.items())) or {0: tuple(sorted(allowed))}


def spread_ranks(nodes: Mapping[int, tuple[int, ...]], ranks: int) -> tuple[tuple[int, ...], ...]:
    """Cores of each of `ranks` ranks, all on one NUMA node.

    Nodes get equal numbers of consecutive ranks (memory bandwidth is what decoding on cores runs
    out of), and split their cores evenly among them. Ranks share cores where there are more ranks
    than cores.
    """
    groups: list[tuple[int, ...]] = []
    for i, cores in enumerate(nodes.values()):
        count = (i + 1) * ranks // len(nodes) - i * ranks // len(nodes)
        for j in range(count):
            if count >= len(cores):
                groups.append((cores[j % len(cores)],))
            else:
                groups.append(cores[j * len(cores) // count : (j + 1) * len(cores) // count])
    return tuple(groups)


def node_of(cores: tuple[int, ...], nodes: Mapping[int, tuple[int, ...]]) -> int | None:
    """The NUMA node that has all of `cores`; None where several share them."""
    owners = [node for node, members in nodes.items() if set(cores) <= set(members)]
    return owners[0] if owners else None
