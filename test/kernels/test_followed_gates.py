"""Gates that kernels read as copies in float32 follow the weights of the target."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_ddtree.ops.gdn_tree import RecurrentLayer, RecurrentShape

recurrent = pytest.importorskip("sglang_ddtree.engine.recurrent")

SHAPE = RecurrentShape(k_heads=1, v_heads=2, k_dim=16, v_dim=16)
WIDTH, REQUESTS = 5, 3


def layers_reading(read: list[RecurrentLayer]) -> Any:
    """``FusedLayers`` with a kernel that keeps the layer it is given."""
    cache = SimpleNamespace(
        temporal=torch.zeros(1, 4, SHAPE.v_heads, 16, 16),
        conv=[torch.zeros(1, 4, SHAPE.channels, 3)],
    )
    backend = SimpleNamespace(
        req_to_token_pool=SimpleNamespace(
            size=REQUESTS, mamba_map={2: 0}, mamba_pool=SimpleNamespace(mamba_cache=cache)
        ),
        forward_metadata=SimpleNamespace(mamba_cache_indices=torch.arange(REQUESTS)),
    )
    params = SimpleNamespace(
        shape=SimpleNamespace(conv=[(SHAPE.channels, 3)], temporal=(SHAPE.v_heads, 16, 16)),
        layers=[2],
        mamba_cache_per_req=1000,
    )
    kernel = SimpleNamespace(kernel="cuda", load=lambda: lambda layer, *_: read.append(layer))
    return recurrent.FusedLayers(backend, params, WIDTH, torch.bfloat16, kernel, kernel)


@pytest.mark.parametrize("A_log_dtype", [torch.float32, torch.bfloat16])
def test_gates_follow_where_they_lie(A_log_dtype: torch.dtype) -> None:
    """A captured graph reads the addresses of its capture."""
    torch.manual_seed(0)
    radix = SimpleNamespace(
        layer_id=2,
        num_k_heads=SHAPE.k_heads,
        num_v_heads=SHAPE.v_heads,
        head_k_dim=SHAPE.k_dim,
        head_v_dim=SHAPE.v_dim,
        conv_weights=torch.randn(SHAPE.channels, 4, dtype=torch.bfloat16),
        bias=None,
        activation="silu",
        A_log=torch.rand(SHAPE.v_heads, dtype=A_log_dtype),
        dt_bias=torch.rand(SHAPE.v_heads, dtype=torch.bfloat16),
    )
    widths = (SHAPE.channels, SHAPE.v_heads, SHAPE.v_heads)
    data = [torch.randn(REQUESTS * WIDTH, width, dtype=torch.bfloat16) for width in widths]
    read: list[RecurrentLayer] = []
    layers = layers_reading(read)
    layers.verify(radix, *data)
    addresses = [read[0].A_log.data_ptr(), read[0].dt_bias.data_ptr()]
    before = read[0].gates(*data[1:])[0]
    for weight in (radix.A_log, radix.dt_bias, radix.conv_weights):
        weight.copy_(torch.randn(weight.shape))  # as a loader does
    layers.follow_weights()
    layers.verify(radix, *data)
    now = read[1]
    assert [now.A_log.data_ptr(), now.dt_bias.data_ptr()] == addresses
    assert now.A_log.dtype == now.dt_bias.dtype == torch.float32
    gates = now.gates(*data[1:])[0]
    assert torch.equal(gates, RecurrentLayer.gdn(radix).gates(*data[1:])[0])
    assert not torch.equal(gates, before)
    assert torch.equal(now.conv_weights, radix.conv_weights)
