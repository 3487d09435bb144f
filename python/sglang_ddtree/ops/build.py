"""Compiling the kernels' sources, once per content: the cache lies outside the checkout."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from sglang_ddtree import home
from sglang_ddtree._kernels import SOURCES

UNITS = ("mla_tree_attention", "gated_delta")
# What `DDTREE_BUILD_EXT=1` builds ahead of time: Hopper, and the family of sm_120.
ARCHITECTURES = ("sm_90a", "sm_120f")
NVCC_FLAGS = ("-std=c++17", "-O3", "--expt-relaxed-constexpr")


class CompileError(RuntimeError):
    """A compiler failed; the message holds its command and its output."""


def cache_folder() -> Path:
    """Where compiled kernels are kept."""
    return home.folder() / "kernels"


def find_nvcc() -> str | None:
    """The CUDA compiler: of CUDA_HOME where that is set, else on the PATH, else where Linux has it.

    None where there is none.
    """
    toolkit = os.environ.get("CUDA_HOME")
    path = f"{toolkit}/bin" if toolkit else f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin"
    return shutil.which("nvcc", path=path)


def compile_cuda(unit: str, architecture: str) -> Path:
    """A shared library of one of `UNITS` for one architecture, from the cache or built now.

    Raises CompileError without nvcc, and with its output where it fails.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise CompileError("no nvcc: install the CUDA toolkit, or set CUDA_HOME to one")
    command = [nvcc, *NVCC_FLAGS, *_tvm_flags(), f"-arch={architecture}", "-Xcompiler", "-fPIC"]
    command += ["-shared", f"-I{SOURCES / 'include'}", str(SOURCES / f"{unit}.cu")]
    return cached(command, f"{unit}-{architecture}.so", toolkit_version(nvcc))


def compile_report(unit: str, architecture: str) -> tuple[Path, str]:
    """The same code as a cubin, and what ptxas reports of its resources."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise CompileError("no nvcc: install the CUDA toolkit, or set CUDA_HOME to one")
    command = [nvcc, *NVCC_FLAGS, f"-arch={architecture}", "-cubin", "-Xptxas", "-v"]
    command += [f"-I{SOURCES / 'include'}", str(SOURCES / f"{unit}.cu")]
    cubin = cached(command, f"{unit}-{architecture}.cubin", toolkit_version(nvcc))
    return cubin, cubin.with_suffix(".log").read_text(encoding="utf-8")


def compile_emulation(sources: Path = SOURCES, defines: Sequence[str] = ()) -> Path:
    """A shared library of the kernels on the emulated machine, by the host's C++ compiler.

    sources: a folder laid out as `csrc`, which tests replace with broken copies.
    """
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-ffp-contract=off"]
    command += [*defines, f"-I{sources / 'include'}", f"-I{sources}"]
    command.append(str(sources / "emulation" / "run.cpp"))
    return cached(command, "emulation.so", "", sources)


def cached(command: list[str], name: str, toolkit: str, sources: Path = SOURCES) -> Path:
    """Runs a compiler with `-o` a file of the cache named by sources, command and toolkit."""
    digest = hashlib.sha256(" ".join([toolkit, *command]).encode())
    for path in sorted(p for p in sources.rglob("*") if re.search(r"\.(cu|cuh|h|cpp)$", p.name)):
        digest.update(path.read_bytes())
    result = cache_folder() / digest.hexdigest()[:16] / name
    if result.exists():
        return result
    result.parent.mkdir(parents=True, exist_ok=True)
    # Renamed when complete, so that processes building the same do not see each other's halves.
    with tempfile.TemporaryDirectory(dir=result.parent) as folder:
        built = Path(folder) / name
        run = subprocess.run([*command, "-o", str(built)], capture_output=True, text=True)
        if run.returncode != 0:
            raise CompileError(f"{' '.join(command)}\n{run.stdout}{run.stderr}")
        result.with_suffix(".log").write_text(run.stdout + run.stderr, encoding="utf-8")
        built.rename(result)
    return result


@lru_cache(maxsize=4)
def toolkit_version(nvcc: str) -> str:
    """Such as `13.0`. Raises CompileError where nvcc does not say."""
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"release (\d+\.\d+)", text)
    if found is None:
        raise CompileError(f"{nvcc} --version names no release: {text}")
    return found[1]


def _tvm_flags() -> list[str]:
    """Headers of tvm-ffi where it is installed, so that libraries export its functions too."""
    if importlib.util.find_spec("tvm_ffi") is None:
        return []
    from tvm_ffi.libinfo import find_dlpack_include_path, find_include_path

    return [f"-I{find_include_path()}", f"-I{find_dlpack_include_path()}"]
