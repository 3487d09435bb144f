"""What a server holds: processes, file handles, memory, KV slots."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from soaking.client import Client

IDLE_TIMEOUT_S = 60
# File handles come and go with a server's own timers; a leak is more than that.
SPARE_HANDLES = 4


@dataclass(frozen=True)
class Census:
    """An idle server, all its processes together.

    Attributes:
        at: calls done by then.
        processes: by what they are called.
        threads: of all.
        handles: open files, sockets among them.
        rss_mb: resident memory, shared pages counted in each process.
        requests: running or waiting.
        slots: KV slots that requests hold; what is only cached is not among them.
    """

    at: int
    processes: int
    threads: int
    handles: int
    rss_mb: float
    requests: int
    slots: int

    def asdict(self) -> dict[str, Any]:
        return asdict(self)

    def held_too_much(self, before: Census) -> list[str]:
        """What the server holds now and did not hold ``before``; of memory see the report."""
        found = []
        if self.processes != before.processes:
            found.append(f"{self.processes} processes, {before.processes} before")
        if self.handles > before.handles + SPARE_HANDLES:
            found.append(f"{self.handles} file handles, {before.handles} before")
        if self.requests or self.slots:
            found.append(f"{self.requests} requests hold {self.slots} KV slots, and none is there")
        return found


def listener(port: int) -> int | None:
    """The process of this machine that listens on ``port``, if we may know."""
    with suppress(psutil.AccessDenied):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                return connection.pid
    return None


def _processes(pid: int | None) -> Iterator[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        if pid is not None:
            first = psutil.Process(pid)
            yield from (first, *first.children(recursive=True))


async def take(url: str, pid: int | None, at: int) -> Census:
    """Wait until the server is idle and count.

    Args:
        pid: of the server, if it is one of this machine.
        at: calls done by now.
    """
    deadline = asyncio.get_running_loop().time() + IDLE_TIMEOUT_S
    async with Client(url, 1) as client:
        while True:
            loads = (await client.get("/v1/loads"))["loads"]
            requests = sum(one["num_running_reqs"] + one["num_waiting_reqs"] for one in loads)
            slots = sum(one["num_used_tokens"] for one in loads)
            now = asyncio.get_running_loop().time()
            if not (requests or slots) or now > deadline:
                break
            await asyncio.sleep(0.05)  # between polls of the condition above
    processes = threads = handles = 0
    rss = 0
    for process in _processes(pid):
        with suppress(psutil.NoSuchProcess):
            threads += process.num_threads()
            handles += process.num_fds()
            rss += process.memory_info().rss
            processes += 1
    return Census(at, processes, threads, handles, round(rss / 1e6, 1), requests, slots)
