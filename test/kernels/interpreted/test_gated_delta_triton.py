"""The Triton kernels of the gated delta rule against the torch reference."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.layer_cases import SLOTS, Layers, layers_of, stash_of
from kernels.tree_cases import make_tree
from sglang_ddtree.ops.gdn_tree import (
    RecurrentLayer,
    RecurrentShape,
    TreeRecurrenceMetadata,
    commit,
    verify,
)
from sglang_ddtree.ops.gdn_tree.paths import TreePaths
from sglang_ddtree.ops.gdn_tree.triton import commit_triton, verify_triton


def layer_on(layer: RecurrentLayer, device: str) -> RecurrentLayer:
    return RecurrentLayer(
        layer.shape,
        layer.conv_weights.to(device),
        None if layer.bias is None else layer.bias.to(device),
        layer.activation,
        layer.A_log.to(device),
        layer.dt_bias.to(device),
    )


def check(case: Layers, device: str, tolerance: float, leaves: list[int]) -> None:
    shape, bs = case.layers[0].shape, case.tree.bs
    paths = TreePaths(case.tree.parent.to(device), case.tree.ancestors.to(device))
    metadata = TreeRecurrenceMetadata.of(case.tree, shape.kernel_size)
    stash = stash_of(case, device)
    states, windows = case.states.to(device), case.windows.to(device)
    slots = case.slots.to(device)
    expected_stash = []
    for i, layer in enumerate(case.layers):
        out = torch.full((bs, case.tree.width, shape.v_heads, shape.v_dim), math.nan)
        out = out.to(case.mixed.dtype).to(device)
        rows = stash.layer(i).requests(bs)
        inputs = (x[i].to(device) for x in (case.mixed, case.a, case.b))
        verify_triton(
            layer_on(layer, device), *inputs, states[i], windows[i], slots, paths, rows, out
        )
        expected, stashed = verify(
            layer,
            case.mixed[i],
            case.a[i],
            case.b[i],
            case.states[i, case.slots],
            case.windows[i, case.slots],
            metadata,
        )
        expected_stash.append(stashed)
        pairs = [(out, expected)]
        pairs += zip(vars(rows).values(), vars(stashed).values(), strict=True)
        for actual, wanted in pairs:
            torch.testing.assert_close(
                actual.cpu().float(), wanted.float(), rtol=tolerance, atol=tolerance
            )

    leaf = torch.tensor(leaves[:bs])
    target = case.slots.clone()
    target[0] = 0  # one request commits elsewhere, as a checkpoint does
    wanted_states, wanted_windows = (
        torch.stack(x)
        for x in zip(
            *(
                commit(
                    stashed,
                    case.states[i, case.slots],
                    case.windows[i, case.slots],
                    metadata,
                    leaf,
                )
                for i, stashed in enumerate(expected_stash)
            ),
            strict=True,
        )
    )
    before = states.clone()
    commit_triton(shape, stash, states, windows, paths, leaf.to(device), slots, target.to(device))
    tolerance = max(tolerance, 1e-4)
    torch.testing.assert_close(
        states[:, target].cpu(), wanted_states, rtol=tolerance, atol=tolerance
    )
    assert torch.equal(windows[:, target].cpu(), wanted_windows)
    others = [slot for slot in range(SLOTS) if slot not in target.tolist()]
    torch.testing.assert_close(states[:, others], before[:, others], equal_nan=True)


GQA = RecurrentShape(k_heads=1, v_heads=2, k_dim=16, v_dim=16)


@pytest.mark.parametrize(
    ("kind", "bs", "nodes", "shape", "bias", "decay", "leaves"),
    [
        ("random", 2, 17, GQA, True, 0.0, [16, 3]),
        ("random", 1, 70, GQA, False, 2.0, [69]),
        ("chain", 1, 33, GQA, True, -3.0, [32]),
        ("star", 1, 16, RecurrentShape(2, 2, 32, 64), False, 5.0, [7]),
        ("chain", 2, 1, RecurrentShape(1, 3, 64, 16, kernel_size=2), True, 0.0, [-1, 0]),
    ],
)
def test_equals_the_reference(
    kind: str,
    bs: int,
    nodes: int,
    shape: RecurrentShape,
    bias: bool,
    decay: float,
    leaves: list[int],
    device: str,
) -> None:
    case = layers_of(make_tree(kind, bs, nodes), shape, torch.float32, bias, decay, count=bs)
    check(case, device, 2e-5, leaves)


def test_bfloat16_inputs_are_rounded_where_the_layer_rounds(device: str) -> None:
    case = layers_of(make_tree("random", 2, 9), GQA, torch.bfloat16, True, 0.0, count=1)
    check(case, device, 1e-2, [8, 2])


def test_a_negative_slot_is_not_written(device: str) -> None:
    case = layers_of(make_tree("chain", 2, 3), GQA, torch.float32, True, 0.0, count=1)
    paths = TreePaths(case.tree.parent.to(device), case.tree.ancestors.to(device))
    states, windows = case.states.to(device), case.windows.to(device)
    none = torch.tensor([-1, -1], device=device)
    leaf = torch.tensor([1, 1], device=device)
    for source, target in ((case.slots.to(device), none), (none, case.slots.to(device))):
        commit_triton(GQA, stash_of(case, device), states, windows, paths, leaf, source, target)
    torch.testing.assert_close(states.cpu(), case.states, equal_nan=True)
    torch.testing.assert_close(windows.cpu(), case.windows, equal_nan=True)


def test_shapes_without_a_kernel_are_refused() -> None:
    case = layers_of(make_tree("chain", 1, 3), GQA, torch.float32, True, 0.0, count=1)
    paths = TreePaths(case.tree.parent, case.tree.ancestors)
    leaf = torch.zeros(1, dtype=torch.int64)
    for shape, reason in (
        (RecurrentShape(1, 1, 16, 16, channel_decay=True), "decay a channel"),
        (RecurrentShape(1, 1, 24, 16), "powers of two"),
        (RecurrentShape(1, 2, 32, 16), "states must hold"),
    ):
        with pytest.raises(ValueError, match=reason):
            commit_triton(
                shape, stash_of(case, "cpu"), case.states, case.windows, paths, leaf, leaf, leaf
            )
