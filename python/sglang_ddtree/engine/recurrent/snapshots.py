"""Trees over recurrent layers with SGLang's kernels: a snapshot after every node (``snapshot``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sglang_ddtree.engine.recurrent.cache_copies import checkpoints_of

if TYPE_CHECKING:
    from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    from sglang_ddtree.engine.verify_input import TreeVerifyInput
    from sglang_ddtree.tree import Acceptance


class SnapshotLayers:
    """The same steps as ``StashedLayers``, by the parent-indexed Triton kernels of SGLang.

    They need the tree's links, and convolution windows that siblings do not share: SGLang lays them
    out so when ``speculative_eagle_topk`` exceeds 1, and silently walks a chain otherwise
    (srt/mem_cache/memory_pool.py:135@0.5.23).

    Raises:
        RuntimeError: the backend or the pool was set up for chains.
    """

    def __init__(self, hybrid: HybridLinearAttnBackend) -> None:
        self._hybrid = hybrid
        cache = hybrid.linear_attn_backend.req_to_token_pool.mamba_pool.mamba_cache
        windows = getattr(cache, "intermediate_conv_window", None)
        if hybrid.linear_attn_backend.topk <= 1 or not windows or not windows[0].is_contiguous():
            raise RuntimeError(
                "SGLang set its recurrent layers up for chains, which would verify a tree wrongly: "
                "use --speculative-ddtree-recurrent stash"
            )

    def follow_weights(self) -> None:
        """Nothing is kept of the layers' weights."""

    def begin(self, verify_input: TreeVerifyInput) -> None:
        """Give SGLang's kernels the links of a step's trees."""
        assert verify_input.tree is not None
        child, sibling = links(verify_input.tree.parent)
        verify_input.retrieve_next_token, verify_input.retrieve_next_sibling = child, sibling

    def commit(self, batch: ScheduleBatch, accepted: Acceptance, prefix_lens: torch.Tensor) -> None:
        """Copy the snapshots of the accepted leaves, and those the prefix cache asks for."""
        checkpoints = checkpoints_of(batch, accepted, prefix_lens)
        self._hybrid.update_mamba_state_after_mtp_verify(
            last_correct_step_indices=accepted.leaf,
            mamba_track_indices=None if checkpoints is None else checkpoints.slots,
            mamba_steps_to_track=None if checkpoints is None else checkpoints.nodes,
            model=None,
            req_pool_indices=batch.req_pool_indices[: len(accepted.leaf)],
        )


def links(parent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First child and next sibling of every node, -1 where there is none.

    Args:
        parent: int ``[bs, N]``, -1 at the root and at padding. Padding is linked as children of the
            root, because the kernels read a parent for every row.

    Returns:
        Two int32 ``[bs, N]``.
    """
    nodes = torch.arange(parent.shape[1], device=parent.device)
    parent = torch.where((parent < 0) & (nodes > 0), 0, parent)
    none = len(nodes)
    is_child = parent[:, None, :] == nodes[:, None]  # [bs, node, candidate]
    is_younger = (parent[:, None, :] == parent[:, :, None]) & (nodes > nodes[:, None])

    def first_of(mask: torch.Tensor) -> torch.Tensor:
        found = torch.where(mask, nodes, none).amin(-1)
        return torch.where(found < none, found, -1).int()

    return first_of(is_child), first_of(is_younger)
