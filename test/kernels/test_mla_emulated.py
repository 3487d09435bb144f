"""The CUDA kernel of MLA tree attention, run on the emulated machine, against torch."""

from __future__ import annotations

import pytest
import torch

from kernels.emulated import SCHEDULES, Emulation, Schedule
from kernels.tree_cases import make_tree, paged_case, poisoned
from sglang_ddtree.ops.build import compile_emulation
from sglang_ddtree.ops.tree_attention.cuda import mla_arguments
from sglang_ddtree.ops.tree_attention.latent import latent_tree_attention
from sglang_ddtree.ops.tree_attention.paged import SplitWorkspace


@pytest.fixture(scope="module")
def emulation() -> Emulation:
    return Emulation(compile_emulation())


def deviation(
    emulation: Emulation,
    schedule: Schedule,
    kind: str,
    bs: int,
    nodes: int,
    lens: list[int],
    page: int,
    heads: int,
    splits: int,
    dtype: torch.dtype,
    min_keys: int = 1,
) -> float:
    """Largest difference from the reference of outputs and log-sum-exps; NaN counts as infinite."""
    case = paged_case(make_tree(kind, bs, nodes), lens, page)
    q = case.queries(heads, 576, torch.bfloat16)
    cache = case.cache(576, dtype=dtype)
    scale = 0.5 if dtype == torch.float8_e4m3fn else 1.0
    workspace = SplitWorkspace.allocate(bs, nodes, heads, 512, splits, "cpu", min_keys)
    workspace.out.fill_(torch.nan)
    workspace.lse.fill_(torch.nan)
    out, lse = poisoned(bs, nodes, heads, 512, dtype=torch.bfloat16), poisoned(bs, nodes, heads)
    name, params = mla_arguments(q, cache, case.paged, workspace, 0.05, scale, out, lse)
    emulation.call(name, params, schedule)
    expected, expected_lse = latent_tree_attention(
        q.float(),
        cache.float().unsqueeze(1) * scale,
        case.metadata,
        value_dim=512,
        scale=0.05,
    )
    left = int(workspace.arrived.sum())  # the next launch starts from zero
    differences = [(out.float() - expected).abs().max(), (lse - expected_lse).abs().max()]
    worst = torch.stack(differences).nan_to_num(torch.inf).max()
    return float(worst) + left


CASES = {
    # kind, bs, nodes, prefix lengths, page, heads, splits, dtype
    "two requests, one without a prefix": (
        "random", 2, 9, [0, 45], 1, 2, 2, torch.bfloat16,
    ),
    "several tiles, whole and partial pages": (
        "random", 1, 9, [64], 16, 8, 3, torch.bfloat16,
    ),
    "two words of ancestors": ("random", 1, 70, [3], 4, 1, 1, torch.bfloat16),
    "fp8, chain": ("chain", 2, 5, [33, 16], 64, 8, 2, torch.float8_e4m3fn),
    "fp8, few rows": ("star", 1, 3, [40], 8, 1, 1, torch.float8_e4m3fn),
    "a short prefix leaves splits empty": ("chain", 1, 2, [33], 1, 4, 3, torch.bfloat16, 32),
    "one row": ("chain", 1, 1, [100], 1, 1, 1, torch.bfloat16),
    "16 heads": ("star", 1, 5, [17], 2, 16, 4, torch.bfloat16),
}  # fmt: skip
TOLERANCE = 2e-2  # of bfloat16 outputs and probabilities


@pytest.mark.parametrize("case", CASES)
def test_equals_the_reference(case: str, emulation: Emulation) -> None:
    schedules = SCHEDULES if case.startswith("two requests") else SCHEDULES[1:3]
    for schedule in schedules:
        assert deviation(emulation, schedule, *CASES[case]) < TOLERANCE, schedule
