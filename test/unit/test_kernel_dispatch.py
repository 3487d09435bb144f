"""The dispatch table: which kernel for which device and shape, and where each row leads."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
import torch

from sglang_ddtree.ops import dispatch
from sglang_ddtree.ops.dispatch import Device, Shape, choose, describe

BLACKWELL = Device((12, 0), triton=True, compiler=True)
HOPPER = Device((9, 0), triton=True, compiler=True)
CPU = Device(None, triton=False, compiler=False)
INTERPRETER = Device(None, triton=True, compiler=False)
KIMI = Shape(nodes=32, heads=8, dim=576, v_dim=512, page_size=64)
QWEN = Shape(nodes=32, heads=6, dim=128, v_dim=128, cache=torch.float32)


def kernel(operation: str, device: Device, shape: Shape) -> str:
    return choose(operation, device, shape).kernel


@pytest.mark.parametrize("device", [BLACKWELL, HOPPER])
def test_cuda_kernels_run_where_they_are_built_for(device: Device) -> None:
    assert kernel(dispatch.MLA, device, KIMI) == "cuda"
    assert kernel(dispatch.MLA, device, replace(KIMI, cache=torch.float8_e4m3fn)) == "cuda"
    assert kernel(dispatch.VERIFY, device, QWEN) == "cuda"
    assert kernel(dispatch.COMMIT, device, QWEN) == "cuda"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": torch.float16}, "bfloat16"),
        ({"dim": 96, "v_dim": 64}, "512 + 64"),
        ({"page_size": 24}, "page size"),
        ({"nodes": 300}, "256 nodes"),
    ],
)
def test_other_mla_shapes_go_to_triton(change: dict, reason: str) -> None:
    choice = choose(dispatch.MLA, BLACKWELL, replace(KIMI, **change))
    assert choice.kernel == "triton"
    assert reason in choice.passed_over[0]


def test_commit_follows_verification() -> None:
    """Both read and write one stash, so no shape may split them."""
    for device in (BLACKWELL, HOPPER, INTERPRETER, CPU):
        for change in ({}, {"nodes": 65}, {"channel_decay": True}, {"dim": 96}, {"taps": 9}):
            shape = replace(QWEN, **change)
            assert kernel(dispatch.VERIFY, device, shape) == kernel(dispatch.COMMIT, device, shape)
    assert kernel(dispatch.VERIFY, BLACKWELL, replace(QWEN, nodes=65)) == "triton"
    assert kernel(dispatch.VERIFY, BLACKWELL, replace(QWEN, channel_decay=True)) == "torch"


def test_without_nvcc_the_triton_kernels_serve_and_say_why() -> None:
    choice = choose(dispatch.MLA, Device((12, 0), triton=True, compiler=False), KIMI)
    assert choice.kernel == "triton"
    assert "no nvcc" in describe([choice])
    other = choose(dispatch.MLA, Device((8, 0), triton=True, compiler=True), KIMI)
    assert "compute capability 8.0" in describe([other])


def test_the_interpreter_is_chosen_by_the_same_table() -> None:
    for operation in (dispatch.MLA, dispatch.GQA, dispatch.VERIFY, dispatch.GROW, dispatch.ACCEPT):
        shape = KIMI if operation == dispatch.MLA else QWEN
        assert kernel(operation, INTERPRETER, shape) == "triton"
        assert kernel(operation, CPU, shape) == "torch"
    assert kernel(dispatch.MOVE, CPU, QWEN) == "sglang"


def test_this_machine_without_a_gpu() -> None:
    assert Device.of("cpu").capability is None


def test_every_row_names_a_function() -> None:
    for row in dispatch.TABLE:
        module, name = row.function.split(":")
        if module.startswith("sglang_ddtree"):
            assert callable(getattr(importlib.import_module(module), name))


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="there are"):
        choose("softmax", CPU, QWEN)
