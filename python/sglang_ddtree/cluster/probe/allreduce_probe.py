"""Measures small all-reduces over candidate groups of this machine."""

from __future__ import annotations

import multiprocessing
import os
import queue
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from sglang_ddtree.cluster.facts.allreduce import NCCL, PCIE_IPC

GLOO = "gloo"
REPEATS = 5
# Time goes into one all-reduce of the slowest kind a hundred times over; a group that needs longer
# hangs, as pull kernels do behind some switches.
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Candidate:
    """A group to measure.

    members: GPU index or number of each rank. cores: those of each rank, empty to leave it free.
    environ: variables of its processes.
    """

    transport: str
    members: tuple[int, ...]
    crosses: bool
    cores: tuple[tuple[int, ...], ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        where = "across sockets" if self.crosses else "inside a domain"
        return f"{self.transport} over {','.join(map(str, self.members))} {where}"


class ProbeFailed(Exception):
    """A group gave no figures; the message says why."""


def measure(
    candidate: Candidate, rows: Sequence[int], hidden: int, iterations: int
) -> list[tuple[int, float]]:
    """(bytes, microseconds) of one all-reduce of bf16 ``[rows, hidden]``, for each of `rows`.

    The median of several timed loops, each as long as its slowest rank. Sizes that the transport
    leaves to another one are missing. Raises ProbeFailed.
    """
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    with tempfile.TemporaryDirectory(prefix="ddtree-probe-") as folder:
        task = (candidate, f"file://{folder}/store", tuple(rows), hidden, iterations)
        ranks = [
            context.Process(target=_run_rank, args=(rank, *task, answers), daemon=True)
            for rank in range(len(candidate.members))
        ]
        for process in ranks:
            process.start()
        try:
            return _collect(candidate, ranks, answers)
        finally:
            for process in ranks:
                process.kill()
                process.join()


def _collect(candidate: Candidate, ranks: list[Any], answers: Any) -> list[tuple[int, float]]:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            result = answers.get(timeout=0.2)
        except queue.Empty:
            codes = [process.exitcode for process in ranks]
            if any(code not in (None, 0) for code in codes):
                raise ProbeFailed(f"{candidate}: ranks ended with {codes}") from None
            continue
        if isinstance(result, str):
            raise ProbeFailed(f"{candidate}: {result}")
        return result
    raise ProbeFailed(f"{candidate}: no end after {TIMEOUT_S:.0f} s, so it hangs here")


def _run_rank(
    rank: int,
    candidate: Candidate,
    store: str,
    rows: tuple[int, ...],
    hidden: int,
    iterations: int,
    answers: Any,
) -> None:
    """One rank's process; rank 0 answers with the points, a failing one with a sentence."""
    try:
        os.environ.update(candidate.environ)
        if candidate.cores:
            os.sched_setaffinity(0, candidate.cores[rank])
        torch.set_num_threads(1)
        on_gpu = candidate.transport != GLOO
        if on_gpu:
            torch.cuda.set_device(rank)
        device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            init_method=store,
            rank=rank,
            world_size=len(candidate.members),
            timeout=timedelta(seconds=TIMEOUT_S),
        )
        reduce = _reducer(candidate.transport, device, hidden, max(rows))
        points = []
        for count in rows:
            block = torch.ones(count, hidden, dtype=torch.bfloat16, device=device)
            micros = _time(reduce, block, iterations)
            if micros is not None:
                points.append((block.numel() * block.element_size(), micros))
        dist.barrier()
        dist.destroy_process_group()
        if rank == 0:
            answers.put(points)
    except Exception as error:
        answers.put(f"rank {rank}: {type(error).__name__}: {error}")


def _reducer(
    transport: str, device: torch.device, hidden: int, max_rows: int
) -> Callable[[torch.Tensor], bool]:
    """Reduces a block; False where the transport would leave it to another."""
    if transport != PCIE_IPC:

        def reduce(block: torch.Tensor) -> bool:
            dist.all_reduce(block)
            return True

        return reduce
    from sglang.srt.distributed.device_communicators.pcie_ipc_ar import PcieIpcCommunicator

    host = dist.new_group(backend="gloo")
    communicator = PcieIpcCommunicator(dist.group.WORLD, device, cpu_group=host)
    communicator.prepare(hidden=hidden, max_rows=max_rows)

    def reduce_over_pcie(block: torch.Tensor) -> bool:
        if not communicator.should_pcie_ipc_ar(block):
            return False
        communicator.pcie_ipc_all_reduce(block)
        return True

    return reduce_over_pcie


def _time(
    reduce: Callable[[torch.Tensor], bool], block: torch.Tensor, iterations: int
) -> float | None:
    """Microseconds of one reduction; None where the transport does not serve the block."""
    if not all(reduce(block) for _ in range(3)):
        return None
    loops = []
    for _ in range(REPEATS):
        _wait_for_device(block.device)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(iterations):
            reduce(block)
        _wait_for_device(block.device)
        slowest = torch.tensor([time.perf_counter() - start], device=block.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        loops.append(float(slowest) / iterations * 1e6)
    return statistics.median(loops)


def _wait_for_device(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def transports_of(ranks: int) -> tuple[str, ...]:
    """What is measured on GPUs: NCCL, and ``pcie_ipc`` for the group sizes that it serves."""
    return (NCCL, PCIE_IPC) if ranks in (2, 4, 8) else (NCCL,)
