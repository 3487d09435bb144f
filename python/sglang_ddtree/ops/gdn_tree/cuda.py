"""Launches of the CUDA kernels of the gated delta rule (csrc/include/ddtree)."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_ddtree.ops.cuda_library import launch
from sglang_ddtree.ops.cuda_params import (
    GatedDeltaCommitParams,
    GatedDeltaParams,
    address,
    require,
)
from sglang_ddtree.ops.gdn_tree.layer import RecurrentLayer
from sglang_ddtree.ops.gdn_tree.paths import TreePaths, check_pools, check_stash
from sglang_ddtree.ops.gdn_tree.stash import RecurrentShape, Stash

MAX_NODES = 64
MAX_COMMIT_NODES = 256
_TYPES = {torch.bfloat16: "bf16", torch.float32: "float"}
# Key width, model type and state type of the variants that are built.
_VARIANTS = {"128_bf16_float", "64_float_float", "128_bf16_bf16"}


def verify_cuda(
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
    """`verify` of one layer in one launch; arguments as `verify_triton`, N up to 64.

    Raises ValueError for what the kernel does not take.
    """
    bs, nodes, _ = mixed_qkv.shape
    if out is None:
        out = mixed_qkv.new_empty(bs, nodes, layer.shape.v_heads, layer.shape.v_dim)
    name, params = verify_arguments(
        layer, mixed_qkv, a, b, states, windows, slots, paths, stash, out
    )
    launch("gated_delta", name, params, mixed_qkv.device)
    return out


def commit_cuda(
    shape: RecurrentShape,
    stash: Stash,
    states: Tensor,
    windows: Tensor,
    paths: TreePaths,
    node: Tensor,
    source: Tensor,
    target: Tensor,
) -> None:
    """`commit` of all layers in one launch, in place; arguments as `commit_triton`."""
    arguments = commit_arguments(shape, stash, states, windows, paths, node, source, target)
    launch("gated_delta", *arguments, states.device)


def variant_of(shape: RecurrentShape, model: torch.dtype, state: torch.dtype) -> str | None:
    """Name of the built variant for a layer, None where there is none."""
    if shape.channel_decay or shape.v_dim % 32 or not 2 <= shape.kernel_size <= 8:
        return None
    if model not in _TYPES or state not in _TYPES:
        return None
    name = f"{shape.k_dim}_{_TYPES[model]}_{_TYPES[state]}"
    return name if name in _VARIANTS else None


def verify_arguments(
    layer: RecurrentLayer,
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    states: Tensor,
    windows: Tensor,
    slots: Tensor,
    paths: TreePaths,
    stash: Stash,
    out: Tensor,
) -> tuple[str, GatedDeltaParams]:
    """The variant to launch and its arguments; errors of `verify_cuda`."""
    shape = layer.shape
    bs, nodes, _ = mixed_qkv.shape
    model = mixed_qkv.dtype
    variant = _variant(shape, model, states.dtype)
    if nodes > MAX_NODES:
        raise ValueError(f"the kernel takes {MAX_NODES} nodes, got {nodes}")
    if paths.parent.shape != (bs, nodes):
        raise ValueError(f"{bs} requests of {nodes} nodes, but paths {list(paths.parent.shape)}")
    check_pools(states, windows, shape)
    if any(x.dtype != model or x.stride(-1) != 1 for x in (mixed_qkv, a, b)):
        raise ValueError(f"mixed_qkv, a and b must be {model} and consecutive at the end")
    optional = {} if layer.bias is None else {"bias": (layer.bias, model)}
    require(
        conv_weights=(layer.conv_weights, model),
        A_log=(layer.A_log, torch.float32),
        dt_bias=(layer.dt_bias, torch.float32),
        windows=(windows, model),
        states=(states, states.dtype),
        slots=(slots, torch.int64),
        out=(out, model),
        keys=(stash.keys, torch.float32),
        updates=(stash.updates, torch.float32),
        log_decay=(stash.log_decay, torch.float32),
        conv_inputs=(stash.conv_inputs, model),
        **optional,
    )
    small = 32 if nodes <= 32 and variant == "128_bf16_float" else 64
    return f"gdn_verify_{small}_{variant}", GatedDeltaParams(
        x=address(mixed_qkv),
        a=address(a),
        b=address(b),
        weight=address(layer.conv_weights),
        bias=address(layer.bias),
        a_log=address(layer.A_log),
        dt_bias=address(layer.dt_bias),
        states=address(states),
        windows=address(windows),
        slots=address(slots),
        parent=address(paths.parent),
        ancestors=address(paths.ancestors),
        out=address(out),
        keys=address(stash.keys),
        updates=address(stash.updates),
        log_decay=address(stash.log_decay),
        inputs=address(stash.conv_inputs),
        x_stride_request=mixed_qkv.stride(0),
        x_stride_node=mixed_qkv.stride(1),
        a_stride_request=a.stride(0),
        a_stride_node=a.stride(1),
        b_stride_request=b.stride(0),
        b_stride_node=b.stride(1),
        scale=shape.k_dim**-0.5,
        bs=bs,
        nodes=nodes,
        k_heads=shape.k_heads,
        v_heads=shape.v_heads,
        v_dim=shape.v_dim,
        taps=shape.kernel_size,
        silu=int(layer.activation is not None),
    )


def commit_arguments(
    shape: RecurrentShape,
    stash: Stash,
    states: Tensor,
    windows: Tensor,
    paths: TreePaths,
    node: Tensor,
    source: Tensor,
    target: Tensor,
) -> tuple[str, GatedDeltaCommitParams]:
    """The variant to launch and its arguments; errors of `commit_cuda`."""
    model = windows.dtype
    variant = _variant(shape, model, states.dtype)
    check_pools(states[0], windows[0], shape)
    bs, nodes = paths.parent.shape
    check_stash(stash, len(states), paths)
    if nodes > MAX_COMMIT_NODES:
        raise ValueError(f"the kernel takes {MAX_COMMIT_NODES} nodes, got {nodes}")
    require(
        keys=(stash.keys, torch.float32),
        updates=(stash.updates, torch.float32),
        log_decay=(stash.log_decay, torch.float32),
        conv_inputs=(stash.conv_inputs, model),
        node=(node, torch.int64),
        source=(source, torch.int64),
        target=(target, torch.int64),
    )
    return f"gdn_commit_{variant}", GatedDeltaCommitParams(
        keys=address(stash.keys),
        updates=address(stash.updates),
        log_decay=address(stash.log_decay),
        inputs=address(stash.conv_inputs),
        states=address(states),
        windows=address(windows),
        source=address(source),
        target=address(target),
        leaf=address(node),
        parent=address(paths.parent),
        ancestors=address(paths.ancestors),
        state_stride_layer=states.stride(0),
        window_stride_layer=windows.stride(0),
        layers=len(states),
        bs=bs,
        stash_requests=stash.keys.shape[1],
        nodes=nodes,
        words=paths.ancestors.shape[2],
        k_heads=shape.k_heads,
        v_heads=shape.v_heads,
        v_dim=shape.v_dim,
        taps=shape.kernel_size,
    )


def _variant(shape: RecurrentShape, model: torch.dtype, state: torch.dtype) -> str:
    variant = variant_of(shape, model, state)
    if variant is None:
        raise ValueError(
            f"no kernel for {shape} with a model in {model} and states in {state}: there are "
            f"{', '.join(sorted(_VARIANTS))}"
        )
    return variant
