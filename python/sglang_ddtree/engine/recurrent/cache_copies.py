"""Where the prefix cache takes a copy of the recurrent state during a decode step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    from sglang_ddtree.tree import Acceptance


class Checkpoints(NamedTuple):
    """State copies that one step owes the prefix cache.

    Attributes:
        nodes: int64 ``[bs]``, node whose state is copied, -1 for none.
        slots: int64 ``[bs]``, SGLang's (virtual) slot that receives it, -1 for a request that was
            freed meanwhile.
    """

    nodes: torch.Tensor
    slots: torch.Tensor


def checkpoints_of(
    batch: ScheduleBatch, accepted: Acceptance, prefix_lens: torch.Tensor
) -> Checkpoints | None:
    """The checkpoints of a batch; ``None`` where decoding takes none.

    Under strategy ``no_buffer``, and without a prefix cache, ``mamba_track_indices`` is ``None``.
    """
    from sglang.srt.runtime_context import mamba_track_grid

    if batch.mamba_track_indices is None:
        return None
    interval = mamba_track_grid(batch.tree_cache.page_size)
    return Checkpoints(boundary_nodes(accepted, prefix_lens, interval), batch.mamba_track_indices)


def boundary_nodes(accepted: Acceptance, prefix_lens: torch.Tensor, interval: int) -> torch.Tensor:
    """The accepted node after which a request has a multiple of ``interval`` tokens.

    SGLang computes the same as a step of a chain, ``mamba_steps_to_track``
    (srt/speculative/dflash_worker_v2.py:2106@0.5.23); in a tree the j-th accepted token sits at
    node ``path[j]``.

    Args:
        prefix_lens: int ``[bs]``, tokens before the root.
        interval: at least the largest number of tokens that a step commits.

    Returns:
        int64 ``[bs]``, -1 where no multiple was reached.
    """
    after = prefix_lens + accepted.length + 1
    boundary = after // interval * interval
    step = (boundary - prefix_lens - 1).clamp(min=0).long()
    node = accepted.path.gather(1, step.unsqueeze(1)).squeeze(1)
    return torch.where(boundary > prefix_lens, node, -1)
