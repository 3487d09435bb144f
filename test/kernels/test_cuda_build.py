"""The libraries that a GPU machine would load: compiled here, loaded here, refused by no driver."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sglang_ddtree.ops.build import ARCHITECTURES, UNITS, find_nvcc
from sglang_ddtree.ops.cuda_library import launcher, library
from sglang_ddtree.ops.cuda_params import MlaParams

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    find_nvcc() is None, reason="no nvcc on the PATH nor in CUDA_HOME: nothing compiles CUDA here"
)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a launch of nothing, meant to be refused")
@pytest.mark.parametrize("tvm_ffi", [True, False])
def test_loads_and_raises_what_the_driver_says(
    tvm_ffi: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through tvm-ffi, and through C as on a machine without it: both reach the launch."""
    if not tvm_ffi:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    launcher.cache_clear()
    path = library("mla_tree_attention", "sm_120f")
    assert path.suffix == ".so"
    monkeypatch.setattr("sglang_ddtree.ops.cuda_library.library", lambda *_: path)
    launch = launcher("mla_tree_attention", "sm_120f", "mla_16_bf16")
    params = MlaParams(bs=1, nodes=1, heads=1, splits=1)
    with pytest.raises(RuntimeError, match="mla_16_bf16: "):
        launch(ctypes.addressof(params), 0)
    launcher.cache_clear()


def test_ahead_of_time_build_packs_every_library(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "DDTREE_BUILD_EXT": "1"},
        check=True,
        capture_output=True,
    )
    built = tmp_path / "sglang_ddtree" / "_kernels" / "csrc" / "built"
    assert {path.name for path in built.iterdir()} == {
        f"{unit}-{architecture}.so" for unit in UNITS for architecture in ARCHITECTURES
    }
    for unit in UNITS:
        assert ctypes.CDLL(str(built / f"{unit}-sm_90a.so"))
