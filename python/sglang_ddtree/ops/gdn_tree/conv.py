"""The short causal convolution of recurrent layers along the parent chains of a tree."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from sglang_ddtree.ops.gdn_tree.metadata import TreeRecurrenceMetadata


def tree_conv(
    x: Tensor,
    window: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    metadata: TreeRecurrenceMetadata,
    *,
    silu: bool = True,
) -> Tensor:
    """Depthwise convolution of every node with its K - 1 predecessors, in at least float32.

    The predecessors are the node's ancestors and, above the root, the committed window: what
    `causal_conv1d_update` computes with tree links (kernels/ops/mamba/causal_conv1d_triton.py:607
    @0.5.23), without writing to the window.

    x: [bs, N, C], inputs of the nodes.
    window: [bs, C, K - 1], the last inputs before the root, newest last (the layout of
        `MambaPool`'s conv states); zeros where the prefix is shorter.
    weight: [C, K], the newest input's last. bias: [C] or None. silu: apply SiLU to the result.
    Returns [bs, N, C] in x's dtype. Raises ValueError where the kernel size is not the metadata's.
    """
    if weight.shape[1] != metadata.taps.shape[2]:
        raise ValueError(
            f"metadata was made for kernel size {metadata.taps.shape[2]}, got {weight.shape[1]}"
        )
    acc = torch.promote_types(x.dtype, torch.float32)
    inputs = _inputs(x, window).to(acc)
    out = torch.zeros((), dtype=acc, device=x.device) if bias is None else bias.to(acc)
    for tap in range(weight.shape[1]):
        columns = metadata.taps[:, :, tap, None]
        out = out + inputs.take_along_dim(columns, -2) * weight[:, tap].to(acc)
    return (functional.silu(out) if silu else out).to(x.dtype)


def path_window(
    x: Tensor, window: Tensor, metadata: TreeRecurrenceMetadata, node: Tensor
) -> Tensor:
    """The window after `node`: what commit writes, and what the next step's root continues from.

    x: [..., bs, N, C] and window: [..., bs, C, K - 1] as in `tree_conv`, with any leading
        dimensions, such as layers.
    node: int64 [bs], any node of the tree; -1 returns the window as it is.
    Returns [..., bs, C, K - 1] in the window's dtype.
    """
    inputs = _inputs(x, window)
    columns = metadata.window_taps(node).unsqueeze(-1)
    columns = columns.view((1,) * (inputs.dim() - 3) + columns.shape)
    return inputs.take_along_dim(columns, -2).mT.to(window.dtype)


def _inputs(x: Tensor, window: Tensor) -> Tensor:
    """[..., bs, K - 1 + N, C]: the columns that `taps` index."""
    dtype = torch.promote_types(x.dtype, window.dtype)
    return torch.cat([window.mT.to(dtype), x.to(dtype)], -2)
