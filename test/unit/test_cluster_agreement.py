"""Ranks that hold different tensors are found, on every rank."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sglang_ddtree.engine.agreement import RanksDisagree, require_agreement


def compare(rank: int, store: str, cases: list[list[torch.Tensor]], answers: Any) -> None:
    """One rank: what it is told about each case, "" for agreement."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    group = dist.group.WORLD
    assert group is not None
    found = []
    for case in cases:
        try:
            require_agreement({"length": torch.tensor([1]), "token": case[rank]}, group)
            found.append("")
        except RanksDisagree as error:
            found.append(str(error))
    dist.barrier()
    answers.put(found)
    dist.destroy_process_group()


def test_differences_are_found_and_named(tmp_path: Path) -> None:
    same = torch.arange(6).view(2, 3)
    other = same.clone()
    other[1, 2] += 4
    other[1, 1] = 0
    cases = [
        ([same, same.clone()], ""),
        ([same, other], "token[1, 1]: 4 on rank 0, 0 on rank 1; 2 elements differ"),
        ([same, same[:1]], "token: shape (2, 3) on rank 0, (1, 3) on rank 1"),
        ([same, same], ""),  # and the group goes on
    ]
    # Not spawn, which would import this file by a name that it does not have.
    context = multiprocessing.get_context("fork")
    answers: Any = context.Queue()
    task = (f"file://{tmp_path}/store", [tensors for tensors, _ in cases], answers)
    ranks = [context.Process(target=compare, args=(rank, *task)) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        for _ in ranks:
            assert answers.get(timeout=120) == [message for _, message in cases]
    finally:
        for process in ranks:
            process.join(10)
            process.kill()
