"""Launches of the Triton kernels of the gated delta rule; arguments as `verify` and `commit`."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from sglang_ddtree._kernels.triton.gated_delta import commit_kernel, verify_kernel
from sglang_ddtree.ops.gdn_tree.layer import RecurrentLayer
from sglang_ddtree.ops.gdn_tree.paths import TreePaths, check_pools, check_stash
from sglang_ddtree.ops.gdn_tree.stash import RecurrentShape, Stash
from sglang_ddtree.tree.topology import num_words

BLOCK_NODES = 16


def verify_triton(
    layer: RecurrentLayer,
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    states: Tensor,
    windows: Tensor,
    slots: Tensor,
    paths: TreePaths,
    stash: Stash,
    out: Tensor | None = None,
) -> Tensor:
    """`verify` of one layer in one launch: convolution, gates, solve and outputs.

    mixed_qkv: [bs, N, C]; a, b: [bs, N, H]; consecutive along their last dimension.
    states: [slots, H, dv, dk] and windows: [slots, C, K - 1], the layer's pools; only read.
    slots: int32 or int64 [bs], the requests' committed slots; a negative one reads as zeros.
    stash: of this layer and these requests, contiguous; overwritten.
    Returns [bs, N, H, dv] in mixed_qkv's dtype, written to `out` where given.
    Raises ValueError for a decay a channel, widths that the kernel does not tile, and layouts.
    """
    shape = layer.shape
    check_shape(shape)
    bs, nodes, _ = mixed_qkv.shape
    if paths.parent.shape != (bs, nodes) or slots.shape != (bs,):
        raise ValueError(
            f"mixed_qkv is {list(mixed_qkv.shape)}, the paths {list(paths.parent.shape)} and the "
            f"slots {list(slots.shape)}"
        )
    check_pools(states, windows, shape)
    _check_layout(stash)
    if any(x.stride(-1) != 1 for x in (mixed_qkv, a, b)) or not layer.conv_weights.is_contiguous():
        raise ValueError("mixed_qkv, a, b and conv_weights must be consecutive at the end")
    if out is None:
        out = mixed_qkv.new_empty(bs, nodes, shape.v_heads, shape.v_dim)
    block_v = min(32, shape.v_dim)
    verify_kernel[(shape.v_dim // block_v, shape.v_heads, bs)](
        mixed_qkv,
        a,
        b,
        layer.conv_weights,
        layer.conv_weights if layer.bias is None else layer.bias,
        layer.A_log,
        layer.dt_bias,
        states,
        windows,
        slots,
        paths.parent,
        paths.ancestors,
        out,
        stash.keys,
        stash.updates,
        stash.log_decay,
        stash.conv_inputs,
        shape.k_dim**-0.5,
        mixed_qkv.stride(0),
        mixed_qkv.stride(1),
        a.stride(0),
        a.stride(1),
        b.stride(0),
        b.stride(1),
        states.stride(0),
        windows.stride(0),
        HAS_BIAS=layer.bias is not None,
        SILU=layer.activation is not None,
        BLOCK_V=block_v,
        num_warps=4,
        num_stages=1,
        **_constants(shape, nodes),
    )
    return out


def commit_triton(
    shape: RecurrentShape,
    stash: Stash,
    states: Tensor,
    windows: Tensor,
    paths: TreePaths,
    node: Tensor,
    source: Tensor,
    target: Tensor,
) -> None:
    """`commit` of all layers in one launch, in place: slot `target` gets the state after `node`.

    stash: [layers, requests, N, ...], contiguous; its first bs requests are used.
    states: [layers, slots, H, dv, dk]; windows: [layers, slots, C, K - 1].
    node, source, target: int32 or int64 [bs]; node -1 copies. Source and target may be equal; where
        one of them is negative, nothing is written.
    Raises ValueError as `verify_triton`.
    """
    check_shape(shape)
    check_pools(states[0], windows[0], shape)
    _check_layout(stash)
    check_stash(stash, len(states), paths)
    bs, nodes = paths.parent.shape
    layers, requests = stash.keys.shape[:2]
    block_v = min(32, shape.v_dim)
    commit_kernel[(shape.v_dim // block_v, shape.v_heads, layers * bs)](
        stash.keys,
        stash.updates,
        stash.log_decay,
        stash.conv_inputs,
        states,
        windows,
        source,
        target,
        node,
        paths.parent,
        paths.ancestors,
        states.stride(0),
        states.stride(1),
        windows.stride(0),
        windows.stride(1),
        requests,
        REQUESTS=bs,
        BLOCK_V=block_v,
        num_warps=4,
        num_stages=1,
        **_constants(shape, nodes),
    )


def check_shape(shape: RecurrentShape) -> None:
    """Raises ValueError where no kernel takes a layer's shape: the torch reference does."""
    widths = {"k_dim": shape.k_dim, "v_dim": shape.v_dim}
    if shape.channel_decay:
        raise ValueError("a decay a channel (KDA) has no kernel yet: use the torch reference")
    if any(x & (x - 1) or x < 16 for x in widths.values()):
        raise ValueError(f"k_dim and v_dim must be powers of two from 16 on, got {widths}")


def _check_layout(stash: Stash) -> None:
    for name, value in vars(stash).items():
        if not value.is_contiguous():
            raise ValueError(f"{name} of the stash must be contiguous")
        if name != "conv_inputs" and value.dtype != torch.float32:
            raise ValueError(f"{name} of the stash must be float32, got {value.dtype}")


def _constants(shape: RecurrentShape, nodes: int) -> dict[str, int]:
    return {
        "NODES": nodes,
        "K_HEADS": shape.k_heads,
        "V_HEADS": shape.v_heads,
        "K_DIM": shape.k_dim,
        "V_DIM": shape.v_dim,
        "TAPS": shape.kernel_size,
        "WORDS": num_words(nodes),
        "BLOCK_NODES": BLOCK_NODES,
        "ALL_NODES": max(BLOCK_NODES, triton.next_power_of_2(nodes)),
    }
