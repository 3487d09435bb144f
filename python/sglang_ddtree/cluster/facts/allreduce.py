"""Latency of small all-reduces: published tables, or those of a probe on the machine itself.

Every table is one measurement of somebody on one machine. Boxes differ by a factor of ten for
untuned NCCL across sockets, so a latency comes with its range and the middle is geometric.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

NCCL = "nccl"
NCCL_TUNED = "nccl-tuned"
ONE_SHOT = "one-shot"
PCIE_IPC = "pcie-ipc"
NVLINK = "nvlink"


@dataclass(frozen=True)
class Latency:
    """Microseconds of one all-reduce: the fastest and slowest table, and their geometric mean.

    bound: the tables are of more ranks or a worse group than asked for, so this is an upper bound.
    """

    low: float
    typical: float
    high: float
    bound: bool = False

    def scaled(self, factor: float) -> Latency:
        """Every figure times `factor`."""
        return Latency(self.low * factor, self.typical * factor, self.high * factor, self.bound)


@dataclass(frozen=True)
class AllReduceTable:
    """All-reduce latencies that one source measured.

    points: (bytes, microseconds), ascending in bytes. crosses: whether the ranks were on both
    sides of a socket link. alone: measured outside a model's step, in a way that the same source's
    step times rule out inside one; kept for comparison, not for predictions.
    """

    transport: str
    ranks: int
    crosses: bool
    points: tuple[tuple[float, float], ...]
    source: str
    alone: bool = False

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        if not sizes or sizes != sorted(set(sizes)) or min(min(p) for p in self.points) <= 0:
            raise ValueError(f"{self.source}: points must ascend in size and be positive")

    def at(self, size: float) -> float:
        """Microseconds for `size` bytes: linear between points, flat below the first (latency
        bound), along the last slope above the last (bandwidth bound)."""
        points = self.points
        if size <= points[0][0] or len(points) == 1:
            return points[0][1]
        beyond = size > points[-1][0]
        pairs = list(pairwise(points))
        left, right = pairs[-1] if beyond else next(p for p in pairs if size <= p[1][0])
        slope = (right[1] - left[1]) / (right[0] - left[0])
        return right[1] + (max(0.0, slope) if beyond else slope) * (size - right[0])


_K = 1024.0

PUBLISHED_TABLES = (
    AllReduceTable(
        ONE_SHOT,
        4,
        False,
        ((8 * _K, 6.4), (32 * _K, 9.2), (128 * _K, 17.6), (256 * _K, 28.7), (512 * _K, 51.0)),
        "rtx6kpro notes, PCIe one-shot kernel, 4 GPUs of one socket",
    ),
    AllReduceTable(
        NCCL,
        4,
        False,
        ((8 * _K, 13.9), (32 * _K, 15.6), (128 * _K, 24.7), (256 * _K, 40.9), (512 * _K, 71.7)),
        "rtx6kpro notes, NCCL, 4 GPUs of one socket",
    ),
    AllReduceTable(
        ONE_SHOT,
        8,
        True,
        ((8 * _K, 64.0),),
        "rtx6kpro notes, PCIe one-shot kernel across sockets",
    ),
    AllReduceTable(
        NCCL_TUNED,
        8,
        True,
        ((32 * _K, 26.2), (128 * _K, 32.1), (256 * _K, 37.3)),
        "rtx6kpro notes, NCCL with a graph file, 2 sockets",
    ),
    AllReduceTable(
        NCCL,
        8,
        True,
        ((8 * _K, 57.6), (32 * _K, 48.2), (128 * _K, 51.6), (256 * _K, 56.5)),
        "rtx6kpro notes, NCCL as it comes, 2 sockets",
    ),
    AllReduceTable(
        NCCL, 8, True, ((4 * _K, 45.0), (64 * _K, 344.0)), "b12x#32479, NCCL on 8x RTX 6000D"
    ),
    AllReduceTable(
        NCCL,
        8,
        True,
        ((12 * _K, 205.1), (96 * _K, 584.9), (384 * _K, 1169.3)),
        "srt/distributed/device_communicators/pcie_ipc_ar.py:18@0.5.23, NCCL on 8x SM120",
        # 124 of these for 62 layers would be 25.4 ms; the same text gives NCCL a TPOT of 21.14.
        alone=True,
    ),
    AllReduceTable(
        PCIE_IPC,
        8,
        True,
        ((12 * _K, 5.3), (96 * _K, 15.3), (384 * _K, 34.6)),
        "srt/distributed/device_communicators/pcie_ipc_ar.py:18@0.5.23, hidden 6144, 8x SM120",
    ),
)


@dataclass(frozen=True)
class AllReduceFigures:
    """Tables to predict from."""

    tables: tuple[AllReduceTable, ...] = PUBLISHED_TABLES

    def latency(self, transport: str, ranks: int, crosses: bool, size: float) -> Latency:
        """Latency of `size` bytes over `ranks` ranks.

        Without a table of this very group, those of the next more ranks, or of a group across
        sockets, stand in as an upper bound: fewer ranks are fewer steps over no worse links.
        Raises LookupError where there is none either.
        """
        known = [
            table
            for table in self.tables
            if table.transport == transport
            and not table.alone
            and table.ranks >= ranks
            and table.crosses >= crosses
        ]
        if not known:
            where = "across sockets" if crosses else "of one socket"
            raise LookupError(
                f"no figures for {transport} over {ranks} ranks {where}: run the probe"
            )
        ranks_used, crosses_used = min((table.ranks, table.crosses) for table in known)
        times = [
            table.at(size)
            for table in known
            if (table.ranks, table.crosses) == (ranks_used, crosses_used)
        ]
        typical = math.exp(sum(map(math.log, times)) / len(times))
        bound = (ranks_used, crosses_used) != (ranks, crosses)
        return Latency(min(times), typical, max(times), bound)

    def measured(self, tables: Iterable[AllReduceTable]) -> AllReduceFigures:
        """These figures with `tables` in place of all published ones of the same group."""
        tables = tuple(tables)
        replaced = {(table.transport, table.ranks, table.crosses) for table in tables}
        kept = (
            table
            for table in self.tables
            if (table.transport, table.ranks, table.crosses) not in replaced
        )
        return AllReduceFigures((*tables, *kept))


def read_tables(probe: Mapping[str, Any], source: str = "probe") -> tuple[AllReduceTable, ...]:
    """Tables of a probe's JSON: ``{"allreduce": [{"transport": "nccl", "ranks": 4, "crosses":
    false, "points": [[bytes, microseconds], ...]}, ...]}``.

    Raises ValueError that names the entry that is not of this form.
    """
    tables = []
    for i, entry in enumerate(probe.get("allreduce", ())):
        try:
            points = tuple((float(size), float(time)) for size, time in entry["points"])
            table = AllReduceTable(
                str(entry["transport"]), int(entry["ranks"]), bool(entry["crosses"]), points, source
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{source}: allreduce[{i}]: {error!r}") from error
        tables.append(table)
    return tuple(tables)
