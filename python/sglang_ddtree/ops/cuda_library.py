"""Loading and launching the CUDA kernels."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from sglang_ddtree._kernels import SOURCES
from sglang_ddtree.ops.build import ARCHITECTURES, compile_cuda

Launcher = Callable[[int, int], Any]


def architecture_of(capability: tuple[int, int]) -> str | None:
    """What to compile for a device of this compute capability; None where no kernel runs on it."""
    return {9: "sm_90a", 12: "sm_120f"}.get(capability[0])


def launch(unit: str, name: str, params: ctypes.Structure, device: torch.device) -> None:
    """Launch a kernel on torch's current stream of a device.

    Raises RuntimeError where the driver refuses it, and CompileError where it cannot be built.
    """
    architecture = architecture_of(torch.cuda.get_device_capability(device))
    assert architecture is not None, "the dispatch table keeps other devices away"
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream(device).cuda_stream
        launcher(unit, architecture, name)(ctypes.addressof(params), stream)


@lru_cache(maxsize=64)
def launcher(unit: str, architecture: str, name: str) -> Launcher:
    """A kernel's host function, through tvm-ffi where it is installed and else through C.

    Compiles on the first call of a unit, unless it was built with the package: call once before
    capturing a CUDA graph.
    """
    path = str(library(unit, architecture))
    raw = ctypes.CDLL(path)
    # A library built without tvm-ffi's headers, such as by pip in isolation, has C functions only.
    if hasattr(raw, f"__tvm_ffi_{name}") and importlib.util.find_spec("tvm_ffi") is not None:
        import tvm_ffi

        function: Launcher = tvm_ffi.load_module(path)[name]
        return function
    launch_raw = raw[f"ddtree_{name}"]
    launch_raw.argtypes, launch_raw.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int

    def checked(params: int, stream: int) -> None:
        error = launch_raw(params, stream)
        if error != 0:
            raise RuntimeError(f"{name}: CUDA error {error}")

    return checked


def library(unit: str, architecture: str) -> Path:
    """The unit's shared library: the one built with the package, or else compiled at need."""
    packed = built_library(unit, architecture)
    return packed if packed.exists() else compile_cuda(unit, architecture)


def built_library(unit: str, architecture: str) -> Path:
    """Where `DDTREE_BUILD_EXT=1 pip install` puts it."""
    assert architecture in ARCHITECTURES
    return SOURCES / "built" / f"{unit}-{architecture}.so"
