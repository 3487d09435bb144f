"""Which kernel runs an operation: one table, by device and shape, the same for every caller.

Rows are tried from the top; the first that takes device and shape is chosen. There is no other
choice at run time: what was printed at start-up is what runs.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sglang_ddtree.ops.build import find_nvcc
from sglang_ddtree.ops.cuda_library import architecture_of, built_library

MLA = "tree attention, MLA"
GQA = "tree attention, GQA"
VERIFY = "gated delta, verify"
COMMIT = "gated delta, commit"
GROW = "tree, grow"
ACCEPT = "tree, accept"
MOVE = "KV rows, commit"


@dataclass(frozen=True)
class Device:
    """What decides about kernels: `capability` is None without CUDA; `triton` and `compiler` say
    whether Triton kernels run here and whether CUDA kernels are built or can be.
    """

    capability: tuple[int, int] | None
    triton: bool
    compiler: bool

    @classmethod
    def of(cls, device: torch.device | str) -> Device:
        """A torch device of this machine. Triton runs on CUDA, and on the CPU where its interpreter
        is on (`TRITON_INTERPRET=1`).
        """
        device = torch.device(device)
        has_triton = importlib.util.find_spec("triton") is not None
        if device.type != "cuda":
            return cls(None, has_triton and _interprets(), compiler=False)
        capability = torch.cuda.get_device_capability(device)
        architecture = architecture_of(capability)
        built = architecture and built_library("mla_tree_attention", architecture).exists()
        return cls(capability, has_triton, compiler=bool(built) or find_nvcc() is not None)


@dataclass(frozen=True)
class Shape:
    """What rows ask about; an operation leaves alone what is not its own.

    nodes: N. heads, kv_heads: on this rank. dim: of a key, with the rope part for MLA. v_dim: of a
    value, the latent rank for MLA. channel_decay: a decay a channel. taps: of the convolution.
    model: type of activations. cache: of KV rows, or of recurrent states.
    """

    nodes: int
    heads: int = 1
    kv_heads: int = 1
    dim: int = 128
    v_dim: int = 128
    model: torch.dtype = torch.bfloat16
    cache: torch.dtype = torch.bfloat16
    page_size: int = 1
    window: bool = False
    channel_decay: bool = False
    taps: int = 4


@dataclass(frozen=True)
class Choice:
    """The chosen kernel, where its function is, and why those above it in the table were not."""

    operation: str
    kernel: str
    function: str
    passed_over: tuple[str, ...]

    def load(self) -> Callable[..., Any]:
        """The function itself."""
        module, name = self.function.split(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function


@dataclass(frozen=True)
class _Row:
    operation: str
    kernel: str
    function: str
    objection: Callable[[Device, Shape], str | None]


def choose(operation: str, device: Device, shape: Shape) -> Choice:
    """The first row that takes an operation. Raises ValueError for an unknown operation."""
    passed_over: list[str] = []
    for row in TABLE:
        if row.operation == operation:
            objection = row.objection(device, shape)
            if objection is None:
                return Choice(operation, row.kernel, row.function, tuple(passed_over))
            passed_over.append(f"{row.kernel}: {objection}")
    raise ValueError(
        f"no operation {operation!r}: there are {sorted({r.operation for r in TABLE})}"
    )


def describe(choices: list[Choice]) -> str:
    """A line an operation, for the log at start-up."""
    return "\n".join(
        f"{choice.operation}: {choice.kernel}"
        + (f" ({'; '.join(choice.passed_over)})" if choice.passed_over else "")
        for choice in choices
    )


def _interprets() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)


def _no_cuda(device: Device) -> str | None:
    if device.capability is None:
        return "no CUDA device"
    if architecture_of(device.capability) is None:
        major, minor = device.capability
        return f"no variant for compute capability {major}.{minor}"
    return None if device.compiler else "no nvcc, and not built with DDTREE_BUILD_EXT=1"


def _no_triton(device: Device) -> str | None:
    return None if device.triton else "Triton does not run here"


def _mla_cuda(device: Device, shape: Shape) -> str | None:
    types = (torch.bfloat16, torch.float8_e4m3fn)
    return _no_cuda(device) or _first(
        ("rows are not 512 + 64 wide", (shape.v_dim, shape.dim) != (512, 576)),
        ("not bfloat16 over bfloat16 or e4m3", not _is_bf16_over(shape, types)),
        ("page size no power of two", _odd(shape.page_size)),
        ("more than 256 nodes", shape.nodes > 256),
        ("sliding window", shape.window),
    )


def _mla_triton(device: Device, shape: Shape) -> str | None:
    return _no_triton(device) or _first(
        ("widths no powers of two", _odd(shape.v_dim) or _odd(shape.dim - shape.v_dim)),
        ("sliding window", shape.window),
    )


def _gqa_triton(device: Device, shape: Shape) -> str | None:
    return _no_triton(device) or _first(
        ("heads wider than 512", max(shape.dim, shape.v_dim) > 512),
        ("heads do not group", shape.heads % shape.kv_heads != 0),
    )


def _delta_cuda(device: Device, shape: Shape) -> str | None:
    variant = (shape.dim, shape.model, shape.cache)
    built = (
        (128, torch.bfloat16, torch.float32),
        (128, torch.bfloat16, torch.bfloat16),
        (64, torch.float32, torch.float32),
    )
    return _no_cuda(device) or _first(
        ("a decay a channel", shape.channel_decay),
        ("no variant for these widths and types", variant not in built or shape.v_dim % 32 != 0),
        ("convolution of other than 2 to 8 taps", not 2 <= shape.taps <= 8),
        # Commit would take more, but reads the stash that this verification writes.
        ("more than 64 nodes", shape.nodes > 64),
    )


def _delta_triton(device: Device, shape: Shape) -> str | None:
    return _no_triton(device) or _first(
        ("a decay a channel", shape.channel_decay),
        ("widths no powers of two from 16", min(shape.dim, shape.v_dim) < 16),
        ("widths no powers of two from 16", _odd(shape.dim) or _odd(shape.v_dim)),
    )


def _tree_triton(device: Device, shape: Shape) -> str | None:
    return _no_triton(device) or _first(("more than 256 nodes", shape.nodes > 256))


def _always(_device: Device, _shape: Shape) -> None:
    return None


def _first(*objections: tuple[str, bool]) -> str | None:
    return next((reason for reason, applies in objections if applies), None)


def _is_bf16_over(shape: Shape, types: tuple[torch.dtype, ...]) -> bool:
    return shape.model == torch.bfloat16 and shape.cache in types


def _odd(width: int) -> bool:
    return width < 1 or width & (width - 1) != 0


_OPS = "sglang_ddtree.ops"
TABLE = (
    _Row(MLA, "cuda", f"{_OPS}.tree_attention.cuda:mla_tree_attention_cuda", _mla_cuda),
    _Row(MLA, "triton", f"{_OPS}.tree_attention.triton:mla_tree_attention_triton", _mla_triton),
    _Row(MLA, "torch", f"{_OPS}.tree_attention.latent:latent_tree_attention", _always),
    _Row(GQA, "triton", f"{_OPS}.tree_attention.triton:tree_attention_triton", _gqa_triton),
    _Row(GQA, "torch", f"{_OPS}.tree_attention.reference:tree_attention", _always),
    _Row(VERIFY, "cuda", f"{_OPS}.gdn_tree.cuda:verify_cuda", _delta_cuda),
    _Row(VERIFY, "triton", f"{_OPS}.gdn_tree.triton:verify_triton", _delta_triton),
    _Row(VERIFY, "torch", f"{_OPS}.gdn_tree.layer:verify", _always),
    _Row(COMMIT, "cuda", f"{_OPS}.gdn_tree.cuda:commit_cuda", _delta_cuda),
    _Row(COMMIT, "triton", f"{_OPS}.gdn_tree.triton:commit_triton", _delta_triton),
    _Row(COMMIT, "torch", f"{_OPS}.gdn_tree.layer:commit", _always),
    _Row(GROW, "triton", f"{_OPS}.tree_build.triton:grow_triton", _tree_triton),
    _Row(GROW, "torch", "sglang_ddtree.tree.grow:grow", _always),
    _Row(ACCEPT, "triton", f"{_OPS}.tree_build.triton:accept_triton", _tree_triton),
    _Row(ACCEPT, "torch", "sglang_ddtree.tree.accept:accept", _always),
    _Row(MOVE, "triton", f"{_OPS}.tree_build.triton:move_path_triton", _tree_triton),
    # The pool's own move_kv_cache.
    _Row(MOVE, "sglang", "sglang.srt.mem_cache.memory_pool:KVCache.move_kv_cache", _always),
)
