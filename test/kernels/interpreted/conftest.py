"""Tests of the Triton kernels, on the GPU where there is one and else in Triton's interpreter.

`TRITON_INTERPRET` counts only if it is set before Triton is imported, and must not reach the other
tests and their servers. So these files belong to a process of their own, which `test_triton.py`
starts; by hand: `TRITON_INTERPRET=1 scripts/run.sh pytest test/kernels/interpreted`.
"""

from __future__ import annotations

import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1" and not torch.cuda.is_available():
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def device() -> str:
    return "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
