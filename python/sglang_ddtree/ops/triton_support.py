"""What the launchers of Triton kernels share."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_DOT_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def dot_type(dtype: torch.dtype) -> Any:
    """The type in which a kernel multiplies matrices of `dtype`.

    Triton's interpreter holds bfloat16 as integers and multiplies them as such
    (runtime/interpreter.py, create_dot), so there it is float32.
    Raises ValueError for a type that no kernel takes.
    """
    if dtype not in _DOT_TYPES:
        raise ValueError(f"q is {dtype}, expected one of {', '.join(map(str, _DOT_TYPES))}")
    return tl.float32 if triton.knobs.runtime.interpret else _DOT_TYPES[dtype]
