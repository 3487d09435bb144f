"""Recurrent layers by kernels against the same steps in torch, in one pool of states each."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_ddtree.ops.dispatch import COMMIT, VERIFY, Device, Shape, choose
from sglang_ddtree.ops.gdn_tree import RecurrentShape
from sglang_ddtree.tree import DraftTree, accept
from unit.gdn_tree_cases import grown_tree, relative

recurrent = importlib.import_module("sglang_ddtree.engine.recurrent")

SHAPE = RecurrentShape(k_heads=1, v_heads=2, k_dim=16, v_dim=16)
LAYERS, SLOTS, WIDTH, INTERVAL = 2, 9, 21, 4


def kernels() -> tuple[Any, Any]:
    shape = Shape(nodes=WIDTH, dim=16, v_dim=16, model=torch.float32, cache=torch.float32)
    device = Device(None, triton=True, compiler=False)
    return choose(VERIFY, device, shape), choose(COMMIT, device, shape)


class Side:
    """One implementation with a pool of its own."""

    def __init__(self, fused: bool, slots: list[int], device: str) -> None:
        random = torch.Generator().manual_seed(0)
        states = torch.randn(LAYERS, SLOTS, SHAPE.v_heads, 16, 16, generator=random)
        windows = torch.randn(LAYERS, SLOTS, SHAPE.channels, 3, generator=random)
        cache = SimpleNamespace(temporal=states.to(device), conv=[windows.to(device)])
        self.cache = cache
        pool = SimpleNamespace(
            size=4, mamba_map={1: 0, 3: 1}, mamba_pool=SimpleNamespace(mamba_cache=cache)
        )
        indices = torch.tensor(slots, dtype=torch.int32, device=device)
        backend: Any = SimpleNamespace(
            req_to_token_pool=pool,
            forward_metadata=SimpleNamespace(mamba_cache_indices=indices),
            _translate_mamba_indices=lambda slots: slots,
        )
        params = SimpleNamespace(
            shape=SimpleNamespace(conv=[(SHAPE.channels, 3)], temporal=(SHAPE.v_heads, 16, 16)),
            layers=[0, 1],
            mamba_cache_per_req=1000,
        )
        kind, more = (recurrent.FusedLayers, kernels()) if fused else (recurrent.StashedLayers, ())
        self.layers = kind(backend, params, WIDTH, torch.float32, *more)


def radix(layer_id: int, device: str) -> Any:
    """The attributes of ``RadixLinearAttention``."""
    random = torch.Generator().manual_seed(layer_id)
    values = {
        "conv_weights": torch.randn(SHAPE.channels, 4, generator=random),
        "A_log": torch.rand(SHAPE.v_heads, generator=random),
        "dt_bias": torch.rand(SHAPE.v_heads, generator=random),
    }
    return SimpleNamespace(
        layer_id=layer_id,
        num_k_heads=SHAPE.k_heads,
        num_v_heads=SHAPE.v_heads,
        head_k_dim=SHAPE.k_dim,
        head_v_dim=SHAPE.v_dim,
        bias=None,
        activation="silu",
        **{name: value.to(device) for name, value in values.items()},
    )


def inputs(bs: int, seed: int, device: str) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    widths = (SHAPE.channels, SHAPE.v_heads, SHAPE.v_heads)
    return [torch.randn(bs * WIDTH, w, generator=random).to(device) for w in widths]


def on_device(tree: DraftTree, device: str) -> DraftTree:
    return DraftTree(**{name: value.to(device) for name, value in vars(tree).items()})


def test_steps_agree(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Outputs, states and windows, the checkpoints that the prefix cache asks for included."""
    context = importlib.import_module("sglang.srt.runtime_context")
    monkeypatch.setattr(context, "mamba_track_grid", lambda page_size: INTERVAL)
    slots, targets, lens = [6, 1, 3], torch.tensor([2, 8, 5]), torch.tensor([3, 9, 30])
    sides = [Side(fused, slots, device) for fused in (False, True)]
    layers = [radix(layer_id, device) for layer_id in (1, 3)]
    checkpointed = 0
    for step in range(3):
        tree = on_device(grown_tree(bs=3, budget=WIDTH - 1, depths=7, seed=step), device)
        accepted = accept(tree, torch.stack([agreeing(tree, row, step) for row in range(3)]))
        batch = SimpleNamespace(
            mamba_track_indices=targets.to(device), tree_cache=SimpleNamespace(page_size=1)
        )
        outs = []
        for side in sides:
            side.layers.begin(SimpleNamespace(tree=tree))
            data = [inputs(3, 10 * step + i, device) for i in range(2)]
            outs.append(
                [side.layers.verify(x, *d).clone() for x, d in zip(layers, data, strict=True)]
            )
            side.layers.commit(batch, accepted, lens.to(device))
        live = node_mask(tree)
        for one, other in zip(*outs, strict=True):
            assert relative(other[0][live], one[0][live].double()) < 1e-5
        after = lens.to(device) + accepted.length + 1
        checkpointed += int((after // INTERVAL > lens.to(device) // INTERVAL).sum())
        for slot in (*slots, *targets.tolist(), 7):
            for name in ("temporal", "conv"):
                one, other = (getattr(side.cache, name) for side in sides)
                one, other = (one[0], other[0]) if name == "conv" else (one, other)
                assert relative(other[:, slot], one[:, slot].double()) < 1e-5, (name, slot)
        lens = after.cpu()
    assert checkpointed >= 3


def agreeing(tree: DraftTree, row: int, rank: int) -> Tensor:
    """Target tokens that accept the path to a request's ``rank``-th deepest node."""
    live = int(tree.num_nodes[row])
    order = tree.depth[row, :live].argsort(descending=True, stable=True)
    node = int(order[rank % live])
    target = torch.full_like(tree.tokens[row], -1)
    while node > 0:
        up = int(tree.parent[row, node])
        target[up] = tree.tokens[row, node]
        node = up
    return target


def node_mask(tree: DraftTree) -> Tensor:
    nodes = torch.arange(tree.width, device=tree.tokens.device)
    return (nodes < tree.num_nodes[:, None]).flatten()
