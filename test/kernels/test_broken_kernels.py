"""Deliberately broken copies of the CUDA kernels: the comparison with torch catches each."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from kernels import test_gated_delta_emulated as gated_delta
from kernels import test_mla_emulated as mla
from kernels.emulated import SCHEDULES, Emulation
from sglang_ddtree._kernels import SOURCES
from sglang_ddtree.ops.build import compile_emulation

ONLY = {
    "mla": "X(mla_16_bf16, ddtree::MlaKernel<ddtree::MlaNarrow<ddtree::Bf16>>) "
    "X(mla_32_bf16, ddtree::MlaKernel<ddtree::MlaWide<ddtree::Bf16>>)",
    "gdn": "X(gdn_verify_64_64_float_float, DDTREE_VERIFY(64, 64, float, float)) "
    "X(gdn_commit_64_float_float, ddtree::CommitKernel<64, float, float>)",
}
HEADERS = {"mla": "mla_tree_attention.cuh", "gdn": "gated_delta.cuh"}
BARRIER = "sync_block();"

# What is broken: (kernel, text that occurs once, its replacement).
MUTANTS = {
    "keys are scored before they arrive": (
        "mla",
        "sync_block();  // stage i has arrived for all, and stage i - 1 is no longer read",
        "",
    ),
    "the stage being read is overwritten": (
        "mla",
        "sync_block();  // stage i has arrived for all, and stage i - 1 is no longer read\n"
        "      load_stage(i + Tile::kStages - 1);",
        "load_stage(i + Tile::kStages - 1);\n      sync_block();",
    ),
    "one group of copies too few is awaited": (
        "mla",
        "wait_copies<Tile::kStages - 2>();",
        "wait_copies<Tile::kStages - 1>();",
    ),
    "no barrier between scores and softmax": (
        "mla",
        f"score(keys);\n      {BARRIER}",
        "score(keys);",
    ),
    "no barrier between softmax and values": ("mla", f"weigh(i);\n      {BARRIER}", "weigh(i);"),
    "the bit of the next node": ("mla", ">> (other % 64)) & 1", ">> ((other + 1) % 64)) & 1"),
    "always the first word of ancestors": ("mla", "p.words + other / 64]", "p.words]"),
    "the page before": (
        "mla",
        "table[position - in_page] +",
        "table[position < p.page_size ? 0 : position - in_page - p.page_size] +",
    ),
    "the last key of the prefix is left out": (
        "mla",
        "? begin + chunk : prefix;",
        "? begin + chunk : prefix - 1;",
    ),
    "sums are not rescaled": ("mla", "acc[m][n][2] *= high;", ""),
    "splits are not weighed": (
        "mla",
        "const float weight = exp2_fast(part_lse - top);",
        "const float weight = 1;",
    ),
    "the count of arrivals is left": ("mla", "if (*flag) *counter = 0;", ""),
    "keys past the end are not zeroed": (
        "mla",
        "copy_async(to + key * Tile::kStagePitch + column, cache + from, live);",
        "if (live) copy_async(to + key * Tile::kStagePitch + column, cache + from, live);",
    ),
    "no barrier after the tree is loaded": (
        "gdn",
        f"load_state();\n    {BARRIER}",
        "load_state();",
    ),
    "no barrier after keys are loaded": ("gdn", f"sum_paths();\n    {BARRIER}", "sum_paths();"),
    "no barrier after queries are loaded": (
        "gdn",
        f"load_queries(start);\n      {BARRIER}",
        "load_queries(start);",
    ),
    "no barrier after the products": (
        "gdn",
        f"multiply_pairs(start);\n      {BARRIER}",
        "multiply_pairs(start);",
    ),
    "no barrier before the solve": (
        "gdn",
        f"subtract_earlier(start);\n      {BARRIER}",
        "subtract_earlier(start);",
    ),
    "no barrier after the solve": ("gdn", f"solve(start);\n      {BARRIER}", "solve(start);"),
    "a node decays its own update": (
        "gdn",
        "expf(path_sum(node, other))",
        "expf(path_sum(node, other - 1))",
    ),
    "earlier blocks are forgotten": ("gdn", "& ((uint64_t{1} << start) - 1);", "& 0;"),
    "the window is read one column off": (
        "gdn",
        "window[p.taps - 1 + at]",
        "window[p.taps - 1 + at + (at < -1)]",
    ),
    "the bit of a neighbour": (
        "gdn",
        "(ancestors()[node] >> other) & 1)",
        "(ancestors()[node] >> (other ^ 1)) & 1)",
    ),
    "an accepted node decays its own update": (
        "gdn",
        "if (node > thread) after += g;",
        "if (node >= thread) after += g;",
    ),
    "no barrier before the state is rebuilt": (
        "gdn",
        f"list_path();\n    {BARRIER}",
        "list_path();",
    ),
    "the window is written before it is read": (
        "gdn",
        "for (int tap = 0; tap < length; ++tap) {",
        "for (int tap = length - 1; tap >= 0; --tap) {",
    ),
    "the wrong request's stash": (
        "gdn",
        "(int64_t(layer) * p.stash_requests + request)",
        "(int64_t(layer) * p.bs + request)",
    ),
}


def build(folder: Path, kernel: str, old: str, new: str) -> Emulation:
    shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns("__pycache__", "built"))
    header = folder / "include" / "ddtree" / HEADERS[kernel]
    source = header.read_text(encoding="utf-8")
    assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times"
    header.write_text(source.replace(old, new), encoding="utf-8")
    only = f"-DDDTREE_EMULATED_KERNELS(X)={ONLY[kernel]}"
    return Emulation(compile_emulation(folder, [only, "-O0"]))


@pytest.fixture(scope="module")
def builds(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Future[Emulation]]]:
    """All mutants, compiled two at a time while the tests wait for their own."""
    root = tmp_path_factory.mktemp("mutants")
    pool = ThreadPoolExecutor(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_DDTREE_HOME", str(root))
        yield {
            name: pool.submit(build, root / f"source-{i}", *mutant)
            for i, (name, mutant) in enumerate(MUTANTS.items())
        }
        pool.shutdown(cancel_futures=True)  # of mutants that were deselected


def is_caught(kernel: str, emulation: Emulation) -> bool:
    if kernel == "mla":
        return any(
            mla.deviation(emulation, schedule, *case) > mla.TOLERANCE
            for case in mla.CASES.values()
            for schedule in SCHEDULES
            if case[7] == torch.bfloat16
        )
    return any(
        gated_delta.deviation(emulation, schedule, *case) > gated_delta.tolerance_of(name)
        for name, case in gated_delta.CASES.items()
        for schedule in SCHEDULES
        if case[4] == torch.float32
    )


@pytest.mark.parametrize("mutant", MUTANTS)
def test_is_caught(mutant: str, builds: dict[str, Future[Emulation]]) -> None:
    assert is_caught(MUTANTS[mutant][0], builds[mutant].result())
