"""nvcc compiles every CUDA kernel for both architectures, within the limits of a processor."""

from __future__ import annotations

import pytest

from sglang_ddtree._kernels import SOURCES
from sglang_ddtree.ops.build import ARCHITECTURES, find_nvcc, toolkit_version
from sglang_ddtree.ops.resources import Resources, count_instructions, measure, parse_usage, table

needs_nvcc = pytest.mark.skipif(
    find_nvcc() is None, reason="no nvcc on the PATH nor in CUDA_HOME: nothing compiles CUDA here"
)


@pytest.fixture(scope="module")
def resources() -> list[Resources]:
    return measure()


@needs_nvcc
def test_within_the_limits(resources: list[Resources]) -> None:
    print("\n" + table(resources))
    assert {x.architecture for x in resources} == set(ARCHITECTURES)
    assert len({x.kernel for x in resources}) == 11
    assert [problem for x in resources for problem in x.problems()] == []


@needs_nvcc
def test_the_kept_table_is_this_one(resources: list[Resources]) -> None:
    kept = (SOURCES / "docs" / "RESOURCES.md").read_text(encoding="utf-8")
    nvcc = find_nvcc()
    assert nvcc is not None
    if f"nvcc {toolkit_version(nvcc)}" not in kept:
        pytest.skip("the kept table is of another CUDA toolkit, whose figures may differ")
    assert table(resources) in kept, "run scripts/run.sh python benchmark/kernels.py --resources"


LOG = """
ptxas info    : Compiling entry function 'one' for 'sm_90a'
ptxas info    : Function properties for one
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem
ptxas info    : Compiling entry function 'mla_two' for 'sm_90a'
ptxas info    : Function properties for mla_two
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers
"""
SASS = """
\t\tFunction : one
        /*0010*/                   LDL.64 R2, [R1] ;                    /* 0x0 */
        /*0020*/              @!P0 STL [R1+0x4], R2 ;                   /* 0x0 */
        /*0030*/              @UP1 HMMA.16816.F32.BF16 R4, R8, R6, R4 ; /* 0x0 */
\t\tFunction : mla_two
        /*0010*/                   LDSM.16.M88.4 R4, [R2] ;             /* 0x0 */
        /*0020*/                   LDGSTS.E.BYPASS.128 [R1], [R2] ;     /* 0x0 */
"""


def test_reports_are_read_as_they_are_written() -> None:
    usage = parse_usage(LOG)
    assert usage["one"] == {"registers": 40, "shared": 1024, "spill": 12, "stack": 16}
    assert usage["mla_two"] == {"registers": 255, "shared": 0, "spill": 0, "stack": 0}
    counts = count_instructions(SASS)
    assert counts["one"]["local"] == 2
    assert counts["one"]["mma"] == 1
    assert counts["mla_two"]["ldmatrix"] == counts["mla_two"]["cp.async"] == 1


def test_every_limit_is_checked() -> None:
    good = Resources("mla_x", "sm_90a", 255, 101_376, 0, 0, mma=1, ldmatrix=1, copies=1, local=0)
    assert good.problems() == []
    bad = Resources("mla_x", "sm_90a", 256, 101_377, 4, 8, mma=0, ldmatrix=0, copies=0, local=1)
    assert len(bad.problems()) == 8
