"""Arguments of the CUDA kernels: the structures of csrc/include/ddtree, field by field."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

import torch
from torch import Tensor

_TYPES = {
    "pointers": ctypes.c_void_p,
    "strides": ctypes.c_int64,
    "floats": ctypes.c_float,
    "ints": ctypes.c_int32,
}


def _fields(**groups: str) -> list[tuple[str, Any]]:
    return [(name, _TYPES[kind]) for kind, names in groups.items() for name in names.split()]


class MlaParams(ctypes.Structure):
    """`MlaParams` of ddtree/mla_tree_attention.cuh."""

    _fields_: ClassVar[list[tuple[str, Any]]] = _fields(
        pointers="q cache table request_rows prefix_lens ancestors out lse partial partial_lse "
        "arrived",
        strides="table_stride cache_stride",
        floats="qk_scale v_scale",
        ints="bs nodes heads words splits page_size min_keys reserved",
    )


class GatedDeltaParams(ctypes.Structure):
    """`GatedDeltaParams` of ddtree/gated_delta.cuh."""

    _fields_: ClassVar[list[tuple[str, Any]]] = _fields(
        pointers="x a b weight bias a_log dt_bias states windows slots parent ancestors out keys "
        "updates log_decay inputs",
        strides="x_stride_request x_stride_node a_stride_request a_stride_node b_stride_request "
        "b_stride_node",
        floats="scale",
        ints="bs nodes k_heads v_heads v_dim taps silu",
    )


class GatedDeltaCommitParams(ctypes.Structure):
    """`GatedDeltaCommitParams` of ddtree/gated_delta.cuh."""

    _fields_: ClassVar[list[tuple[str, Any]]] = _fields(
        pointers="keys updates log_decay inputs states windows source target leaf parent ancestors",
        strides="state_stride_layer window_stride_layer",
        ints="layers bs stash_requests nodes words k_heads v_heads v_dim taps reserved",
    )


def address(value: Tensor | None) -> int | None:
    """Where a tensor's values begin, in the form of a pointer field."""
    return None if value is None else value.data_ptr()


def require(**checks: tuple[Tensor, torch.dtype]) -> None:
    """Raises ValueError, naming the argument, where one is not contiguous or of another type."""
    for name, (value, dtype) in checks.items():
        if value.dtype != dtype or not value.is_contiguous():
            layout = "contiguous" if value.is_contiguous() else "not contiguous"
            raise ValueError(f"{name} must be contiguous {dtype}, got {value.dtype}, {layout}")
