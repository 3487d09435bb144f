"""The processes of a training run: torchrun's, or this one alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


@dataclass(frozen=True)
class Workers:
    """Where this process stands among those that train."""

    rank: int
    world: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes logs."""
        return self.rank == 0

    def total(self, tensor: Tensor) -> Tensor:
        """Sum over all processes."""
        summed = tensor.detach().clone()
        if self.world > 1:
            dist.all_reduce(summed)
        return summed

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()


@contextmanager
def workers() -> Iterator[Workers]:
    """Join the process group: NCCL on GPUs, gloo without; torchrun names rank and size."""
    cuda = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        store = torch._C._distributed_c10d.HashStore()
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield Workers(dist.get_rank(), dist.get_world_size(), device)
    finally:
        dist.destroy_process_group()


def shard(model: nn.Module, layers: nn.ModuleList, group: Workers, bfloat16: bool) -> None:
    """FSDP2 over all processes, layer by layer.

    Args:
        bfloat16: compute in it; weights, gradients and optimizer states stay float32.
    """
    if group.world == 1 and not bfloat16:
        return
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if bfloat16 else None, reduce_dtype=torch.float32
    )
    for layer in layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
