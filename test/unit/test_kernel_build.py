"""The cache of compiled kernels: what makes a new build and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_ddtree.ops import build
from sglang_ddtree.ops.build import CompileError, cached, find_nvcc
from sglang_ddtree.ops.cuda_library import architecture_of

# Stands in for a compiler: notes each run, and writes the file after -o.
COMPILER = """#!/bin/sh
echo run >>"$(dirname "$0")/runs"
for last; do :; done
[ -e "$(dirname "$0")/broken" ] && { echo "no such thing" >&2; exit 1; }
echo compiled >"$last"
"""


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SGLANG_DDTREE_HOME", str(tmp_path / "home"))
    path = tmp_path / "bin" / "compiler"
    path.parent.mkdir()
    path.write_text(COMPILER)
    path.chmod(0o755)
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "a.cuh").write_text("one")
    return path


def runs(compiler: Path) -> int:
    return len((compiler.parent / "runs").read_text().splitlines())


def test_compiles_once_a_content(compiler: Path, tmp_path: Path) -> None:
    sources = tmp_path / "sources"

    def result(flag: str = "-O3", toolkit: str = "13.0") -> Path:
        return cached([str(compiler), flag], "unit.so", toolkit, sources)

    first = result()
    assert first.read_text() == "compiled\n"
    assert tmp_path / "home" in first.parents
    assert result() == first
    assert runs(compiler) == 1
    (sources / "notes.md").write_text("not a source")
    assert result() == first
    (sources / "a.cuh").write_text("two")
    paths = {first, result(), result(toolkit="13.1"), result(flag="-arch=sm_90a")}
    assert len(paths) == 4
    assert runs(compiler) == 4


def test_a_failure_says_what_and_leaves_nothing(compiler: Path, tmp_path: Path) -> None:
    (compiler.parent / "broken").touch()
    with pytest.raises(CompileError, match=r"compiler -x(.|\n)*no such thing"):
        cached([str(compiler), "-x"], "unit.so", "", tmp_path / "sources")
    assert list((tmp_path / "home").rglob("unit*")) == []
    (compiler.parent / "broken").unlink()
    assert cached([str(compiler), "-x"], "unit.so", "", tmp_path / "sources").exists()


def test_without_nvcc_compiling_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_nvcc", lambda: None)
    with pytest.raises(CompileError, match="set CUDA_HOME"):
        build.compile_cuda("gated_delta", "sm_90a")


def test_cuda_home_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert find_nvcc() is None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "nvcc").chmod(0o755)
    assert find_nvcc() == str(tmp_path / "bin" / "nvcc")


def test_an_architecture_a_family() -> None:
    assert architecture_of((9, 0)) == "sm_90a"
    assert architecture_of((12, 0)) == architecture_of((12, 1)) == "sm_120f"
    assert architecture_of((8, 9)) is None
    assert architecture_of((10, 0)) is None
