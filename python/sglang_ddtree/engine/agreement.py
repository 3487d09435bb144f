"""Whether all ranks of a process group hold the same tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist


class RanksDisagree(RuntimeError):
    """Ranks of one group hold different values; the message says which and where."""


def require_agreement(values: Mapping[str, torch.Tensor], group: dist.ProcessGroup) -> None:
    """Compare tensors of any shape and dtype over a group that takes host objects (gloo).

    Every rank sends all its values, so this is for debugging. Raises RanksDisagree on every rank,
    with the first value that differs from rank 0's.
    """
    mine = {name: value.detach().cpu() for name, value in values.items()}
    gathered: list[dict[str, torch.Tensor]] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(gathered, mine, group=group)
    first = gathered[0]
    for rank, other in enumerate(gathered[1:], 1):
        for name, value in first.items():
            if value.shape != other[name].shape:
                raise RanksDisagree(
                    f"{name}: shape {tuple(value.shape)} on rank 0, {tuple(other[name].shape)} on "
                    f"rank {rank}"
                )
            if different := (value != other[name]).nonzero().tolist():
                where = tuple(different[0])
                raise RanksDisagree(
                    f"{name}{list(where)}: {value[where].item()} on rank 0, "
                    f"{other[name][where].item()} on rank {rank}; {len(different)} elements differ"
                )
