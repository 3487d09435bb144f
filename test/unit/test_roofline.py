"""The roofline's arithmetic against figures worked out by hand, and what it promises."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmark"


@pytest.fixture(scope="module")
def roofline() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "benchmark_roofline", BENCHMARK / "common" / "roofline.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_shapes_are_the_published_ones(roofline: ModuleType) -> None:
    kimi, _, qwen, qwen4, gemma = roofline.models()
    assert [(x.count, x.heads, x.dim, x.v_dim) for x in kimi.layers] == [(61, 8, 576, 512)]
    assert [(x.kind, x.count, x.heads) for x in qwen.layers] == [("gqa", 16, 24), ("gdn", 48, 48)]
    assert [x.kv_heads for x in qwen4.layers] == [1, 4]
    assert [(x.count, x.dim, x.window) for x in gemma.layers] == [(50, 256, 1024), (10, 512, None)]


def test_an_mla_layer_by_hand(roofline: ModuleType) -> None:
    """128k of bfloat16 latent are 151 MB, 84 µs of an RTX PRO 6000; 33 nodes make 264 rows."""
    layer = roofline.models()[0].layers[0]
    cost = layer.ours(33, 131072)
    assert cost.memory == pytest.approx((131072 + 33) * 1152 + 33 * 8 * 1088 * 2)
    assert cost.flop == pytest.approx(2 * 264 * (131072 + 33) * 1088)
    assert layer.ours(1, 131072).floor(roofline.CARDS[0]) == pytest.approx(84.3e-6, rel=0.01)


def test_a_recurrent_layer_by_hand(roofline: ModuleType) -> None:
    """A state of 48 x 128 x 128 floats is 3.1 MB; stock reads and writes one a node."""
    layer = roofline.models()[2].layers[1]
    state = 48 * 128 * 128 * 4
    assert state < layer.ours(1, 0).memory < 1.1 * state
    assert layer.stock(32, 0).memory > 64 * state
    assert layer.ours(64, 0).memory < 3 * state


def test_each_prefix_byte_crosses_the_bus_once_and_no_launch_is_added(
    roofline: ModuleType,
) -> None:
    for model in roofline.models():
        for layer in model.layers:
            for nodes in (16, 32, 64):
                ours, stock = layer.ours(nodes, 32768), layer.stock(nodes, 32768)
                assert ours.launches == 1 <= stock.launches
                assert ours.memory <= stock.memory
                if layer.kind != "gdn":
                    row = layer.kv_heads * layer.dim * layer.kv_bytes
                    row *= 1 if layer.kind == "mla" else 2  # values have rows of their own
                    added = layer.ours(nodes, 65536).memory - ours.memory
                    assert added == (0 if layer.window else 32768 * row)
