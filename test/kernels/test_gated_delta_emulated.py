"""The CUDA kernels of the gated delta rule, run on the emulated machine, against torch."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.emulated import SCHEDULES, Emulation, Schedule
from kernels.layer_cases import SLOTS, Layers, layers_of, stash_of
from kernels.tree_cases import make_tree
from sglang_ddtree.ops.build import compile_emulation
from sglang_ddtree.ops.gdn_tree import RecurrentShape, TreeRecurrenceMetadata, commit, verify
from sglang_ddtree.ops.gdn_tree.cuda import commit_arguments, variant_of, verify_arguments
from sglang_ddtree.ops.gdn_tree.paths import TreePaths

F32 = RecurrentShape(k_heads=1, v_heads=2, k_dim=64, v_dim=32)
WIDE = RecurrentShape(k_heads=2, v_heads=2, k_dim=128, v_dim=64)


@pytest.fixture(scope="module")
def emulation() -> Emulation:
    return Emulation(compile_emulation())


def deviation(
    emulation: Emulation,
    schedule: Schedule,
    kind: str,
    bs: int,
    nodes: int,
    shape: RecurrentShape,
    dtype: torch.dtype,
    bias: bool,
    decay: float,
    leaves: list[int],
) -> float:
    """Largest difference from the reference of whatever the two kernels write, relative to 1."""
    case = layers_of(make_tree(kind, bs, nodes), shape, dtype, bias, decay, count=2)
    paths = TreePaths(case.tree.parent, case.tree.ancestors)
    metadata = TreeRecurrenceMetadata.of(case.tree, shape.kernel_size)
    stash, worst, stashes = stash_of(case, "cpu"), 0.0, []
    for i, layer in enumerate(case.layers):
        out = torch.full((bs, nodes, shape.v_heads, shape.v_dim), math.nan, dtype=dtype)
        rows = stash.layer(i).requests(bs)
        inputs = (case.mixed[i], case.a[i], case.b[i])
        pools = (case.states[i], case.windows[i])
        arguments = verify_arguments(layer, *inputs, *pools, case.slots, paths, rows, out)
        emulation.call(*arguments, schedule)
        expected, stashed = verify(layer, *inputs, *(pool[case.slots] for pool in pools), metadata)
        stashes.append(stashed)
        worst = max(worst, difference(out, expected))
        for name, value in vars(stashed).items():
            worst = max(worst, difference(getattr(rows, name), value))
    return max(worst, commit_deviation(emulation, schedule, case, stash, stashes, leaves))


def commit_deviation(
    emulation: Emulation,
    schedule: Schedule,
    case: Layers,
    stash: object,
    stashes: list,
    leaves: list[int],
) -> float:
    paths = TreePaths(case.tree.parent, case.tree.ancestors)
    shape = case.layers[0].shape
    metadata = TreeRecurrenceMetadata.of(case.tree, shape.kernel_size)
    leaf, target = torch.tensor(leaves), case.slots.clone()
    target[0] = 0
    expected = [
        commit(x, case.states[i, case.slots], case.windows[i, case.slots], metadata, leaf)
        for i, x in enumerate(stashes)
    ]
    states, windows = case.states.clone(), case.windows.clone()
    arguments = commit_arguments(shape, stash, states, windows, paths, leaf, case.slots, target)
    emulation.call(*arguments, schedule)
    worst = 0.0
    for i, (state, window) in enumerate(expected):
        worst = max(worst, difference(states[i, target], state))
        worst = max(worst, difference(windows[i, target], window))
    others = [slot for slot in range(SLOTS) if slot not in target.tolist()]
    assert torch.equal(states[:, others].isnan(), case.states[:, others].isnan())
    return worst


def difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    gap = (actual.float() - expected.float()).abs() / (1 + expected.float().abs())
    return float(gap.nan_to_num(math.inf).max())


CASES = {
    # kind, bs, nodes, shape, model's type, bias, decay, leaves
    "random": ("random", 2, 17, F32, torch.float32, True, 0.0, [16, 3]),
    "widest tree": ("random", 1, 64, F32, torch.float32, False, 2.0, [63]),
    "chain over blocks": ("chain", 1, 50, F32, torch.float32, True, -3.0, [49]),
    "star": ("star", 1, 16, F32, torch.float32, False, 5.0, [7]),
    "one node, nothing accepted": ("chain", 2, 1, F32, torch.float32, True, 0.0, [-1, 0]),
    "bfloat16": ("random", 2, 20, WIDE, torch.bfloat16, True, 0.0, [19, 2]),
    "bfloat16, wide": ("random", 1, 40, WIDE, torch.bfloat16, False, 0.0, [39]),
}


def tolerance_of(case: str) -> float:
    return 2e-2 if CASES[case][4] == torch.bfloat16 else 1e-4


@pytest.mark.parametrize("case", CASES)
def test_equals_the_reference(case: str, emulation: Emulation) -> None:
    for schedule in SCHEDULES if case == "random" else SCHEDULES[1:3]:
        assert deviation(emulation, schedule, *CASES[case]) < tolerance_of(case), schedule


def test_shapes_without_a_variant_are_known() -> None:
    assert variant_of(WIDE, torch.bfloat16, torch.float32) == "128_bf16_float"
    assert variant_of(WIDE, torch.float16, torch.float32) is None
    assert variant_of(RecurrentShape(1, 1, 32, 32), torch.float32, torch.float32) is None
    channel = RecurrentShape(1, 1, 128, 128, channel_decay=True)
    assert variant_of(channel, torch.bfloat16, torch.float32) is None
