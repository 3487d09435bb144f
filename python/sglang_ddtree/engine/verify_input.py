"""What the target's verify forward is told about the tree."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sglang.srt.speculative.dflash_info import DFlashVerifyInput

from sglang_ddtree.tree import DraftTree


@dataclass
class TreeVerifyInput(DFlashVerifyInput):
    """``DFlashVerifyInput`` (srt/speculative/dflash_info.py:27@0.5.23) that carries a tree.

    Backends of this project read ``tree``; SGLang's ``triton`` backend reads ``custom_mask``, its
    recurrent kernels the links (first child and next sibling of each node, int32 ``[bs, N]``).
    """

    tree: DraftTree | None = None
    retrieve_next_token: torch.Tensor | None = None
    retrieve_next_sibling: torch.Tensor | None = None


def flat_custom_mask(
    tree: DraftTree, prefix_lens: torch.Tensor, max_total_prefix: int
) -> torch.Tensor:
    """The tree's mask in the layout of SGLang's ``triton`` backend.

    Request ``b`` owns ``N * (prefix_lens[b] + N)`` consecutive entries, one row of
    ``prefix_lens[b] + N`` keys per node, which its ``mask_indptr`` sums up
    (srt/layers/attention/triton_backend.py:1051@0.5.23). The offsets are computed on
    the device; only the size of the buffer comes from the host.

    Args:
        tree: of ``bs`` requests, ``N`` nodes each.
        prefix_lens: int ``[bs]``, committed lengths.
        max_total_prefix: host bound of ``prefix_lens.sum()``.

    Returns:
        bool, flat; entries past the last request are unused.
    """
    bs, num_nodes = tree.tokens.shape
    mask = torch.ones(
        num_nodes * (max_total_prefix + bs * num_nodes), dtype=torch.bool, device=tree.tokens.device
    )
    row_width = prefix_lens.long() + num_nodes
    first = (row_width.cumsum(0) - row_width) * num_nodes
    node = torch.arange(num_nodes, device=mask.device)
    index = (
        (first + prefix_lens)[:, None, None]
        + node[None, :, None] * row_width[:, None, None]
        + node[None, None, :]
    )
    mask[index.flatten()] = tree.ancestor_mask().flatten()
    return mask
