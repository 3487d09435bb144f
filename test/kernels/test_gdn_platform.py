"""The CPU platform's GDN layers against transformers and SGLang's Triton kernels."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.recurrent_pool import HIDDEN, SHAPE, Layer, Pool, layer_of_transformers
from unit.gdn_tree_cases import relative

gdn_ops = importlib.import_module("sglang_ddtree.platform.gdn_ops")


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("ratio", [1, 3, 4])
def test_projections_of_qwen3_5(ratio: int) -> None:
    k_heads, v_heads, k_dim, v_dim = 2, 2 * ratio, 8, 4
    parts = [normal(5, k_heads * k_dim, seed=1), normal(5, k_heads * k_dim, seed=2)]
    parts += [normal(5, v_heads * v_dim, seed=3), normal(5, v_heads * v_dim, seed=4)]
    b, a = normal(5, v_heads, seed=5), normal(5, v_heads, seed=6)
    split = gdn_ops.split_projections(
        torch.cat(parts, -1), torch.cat([b, a], -1), k_heads, v_heads, k_dim, v_dim
    )
    assert torch.equal(split[0], torch.cat(parts[:3], -1))
    assert torch.equal(split[1].flatten(1), parts[3])
    assert torch.equal(split[2], b)
    assert torch.equal(split[3], a)
    assert all(x.is_contiguous() for x in split)


def test_projections_of_qwen3_next() -> None:
    modeling = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")
    config = modeling.Qwen3NextConfig(
        hidden_size=HIDDEN,
        linear_num_key_heads=SHAPE.k_heads,
        linear_num_value_heads=SHAPE.v_heads,
        linear_key_head_dim=SHAPE.k_dim,
        linear_value_head_dim=SHAPE.v_dim,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    module = modeling.Qwen3NextGatedDeltaNet(config, 0).requires_grad_(False)
    hidden = normal(1, 7, HIDDEN)
    qkvz, ba = module.in_proj_qkvz(hidden), module.in_proj_ba(hidden)
    q, k, v, z, b, a = module.fix_query_key_value_ordering(qkvz, ba)
    split = gdn_ops.split_grouped_projections(
        qkvz[0], ba[0], SHAPE.k_heads, SHAPE.v_heads, SHAPE.k_dim, SHAPE.v_dim
    )
    assert torch.equal(split[0], torch.cat([x[0].flatten(1) for x in (q, k, v)], -1))
    for got, expected in zip(split[1:], (z, b, a), strict=True):
        assert torch.equal(got, expected[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gated_norm(dtype: torch.dtype) -> None:
    modeling = importlib.import_module("transformers.models.qwen3_5.modeling_qwen3_5")
    norm = modeling.Qwen3_5RMSNormGated(16, eps=1e-5)
    norm.weight.data = normal(16, seed=1)
    x, z = normal(9, 16, seed=2).to(dtype), normal(9, 16, seed=3).to(dtype)
    got = gdn_ops.gated_norm(x, norm.weight.to(dtype), None, z, eps=1e-5, is_rms_norm=True)
    assert got.dtype == dtype
    expected = norm(x.float(), z.float()).double()
    assert relative(got, expected) < (1e-6 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("norm_before_gate", [True, False])
@pytest.mark.parametrize("group_size", [None, 4])
@pytest.mark.parametrize("is_rms_norm", [True, False])
def test_other_norms(norm_before_gate: bool, group_size: int | None, is_rms_norm: bool) -> None:
    """Against torch's own norms, one group at a time."""
    x, z, weight, bias = normal(5, 8), normal(5, 8, seed=1), normal(8, seed=2), normal(8, seed=3)
    got = gdn_ops.gated_norm(
        x, weight, bias, z, 1e-5, group_size, norm_before_gate, is_rms_norm, "sigmoid"
    )
    gate, size = torch.sigmoid(z.double()), group_size or 8
    inputs = x.double() if norm_before_gate else x.double() * gate
    norm = torch.nn.functional.rms_norm if is_rms_norm else torch.nn.functional.layer_norm
    normed = torch.cat([norm(part, (size,), eps=1e-5) for part in inputs.split(size, -1)], -1)
    expected = normed * weight + bias
    assert relative(got, expected * gate if norm_before_gate else expected) < 1e-6


@pytest.mark.parametrize("inplace", [True, False])
def test_sigmoid_gate_with_strides(inplace: bool) -> None:
    out, both = normal(3, 8), normal(3, 2, 8, seed=1)
    gate = both[..., 4:]  # [tokens, heads, head_dim], as a chunk of the query projection
    expected = out.double() * torch.sigmoid(gate.double()).flatten(1)
    got = gdn_ops.gate_by_sigmoid(out, gate, inplace=inplace)
    assert relative(got, expected) < 1e-6
    assert (got.data_ptr() == out.data_ptr()) == inplace


class Backend:
    """``TorchGDNBackend`` over a pool, without a server around it."""

    def __init__(self, pool: Pool) -> None:
        self.module = importlib.import_module("sglang_ddtree.platform.gdn_backend")
        self.inner = object.__new__(self.module.TorchGDNBackend)
        self.inner.req_to_token_pool = pool

    def prefill(
        self,
        layer: Layer,
        hidden: list[Tensor],
        slots: list[int],
        tracked: list[tuple[int, int] | None] | None = None,
    ) -> list[Tensor]:
        lengths = [len(x) for x in hidden]
        tracked = tracked or [None] * len(slots)
        self.inner._segments = self.module.segments(lengths, slots, tracked)
        mode = SimpleNamespace(is_target_verify=lambda: False)
        batch = SimpleNamespace(forward_mode=mode)
        inputs = layer.inputs(torch.cat(hidden))
        return list(self.inner.forward_extend(layer.radix, batch, *inputs)[0].split(lengths))

    def decode(
        self,
        layer: Layer,
        hidden: Tensor,
        slots: list[int],
        track: tuple[list[bool], list[int]] | None = None,
    ) -> Tensor:
        mask, targets = track or (None, [])
        batch = SimpleNamespace(mamba_track_mask=None if mask is None else torch.tensor(mask))
        self.inner.forward_metadata = SimpleNamespace(
            mamba_cache_indices=torch.tensor(slots, dtype=torch.int32),
            mamba_track_indices=torch.tensor(targets),
        )
        return self.inner.forward_decode(layer.radix, batch, *layer.inputs(hidden))[0]


@pytest.fixture(scope="module")
def layer() -> Layer:
    return Layer(layer_of_transformers(seed=5), layer_id=3)


LENGTHS = (1, 3, 64, 65, 150)


def texts(extra: int = 0) -> list[Tensor]:
    return [normal(length + extra, HIDDEN, seed=length) * 3 for length in LENGTHS]


def test_prefill_then_decode(layer: Layer) -> None:
    """A ragged batch of prompts, each continued by ten tokens, in slots of any order."""
    whole, slots = texts(extra=10), [7, 2, 5, 1, 4]
    expected = [layer.expected(text) for text in whole]
    backend = Backend(Pool(layers=2, slots=9, size=5))
    prompts = [text[:length] for text, length in zip(whole, LENGTHS, strict=True)]
    for got, wanted in zip(backend.prefill(layer, prompts, slots), expected, strict=True):
        assert relative(got, wanted[: len(got)].double()) < 1e-5
    for step in range(10):
        rows = [length + step for length in LENGTHS]
        hidden = torch.stack([text[row] for text, row in zip(whole, rows, strict=True)])
        wanted = torch.stack([text[row] for text, row in zip(expected, rows, strict=True)])
        assert relative(backend.decode(layer, hidden, slots), wanted.double()) < 1e-5


def test_a_prompt_in_chunks(layer: Layer) -> None:
    text = normal(200, HIDDEN) * 3
    expected, backend = layer.expected(text), Backend(Pool(layers=2, slots=3, size=1))
    begin = 0
    for end in (2, 70, 71, 200):
        (got,) = backend.prefill(layer, [text[begin:end]], [2])
        assert relative(got, expected[begin:end].double()) < 1e-5
        begin = end


@pytest.mark.parametrize("after", [1, 64, 80, 150])
def test_checkpoint_of_a_prefill(layer: Layer, after: int) -> None:
    """Whoever continues from the checkpoint reads the text up to it, and not a token more."""
    pool = Pool(layers=2, slots=6, size=2)
    backend, text = Backend(pool), normal(150, HIDDEN) * 3
    backend.prefill(layer, [normal(90, HIDDEN, seed=1), text], [4, 2], [None, (after, 5)])
    other = normal(20, HIDDEN, seed=2) * 3
    (got,) = backend.prefill(layer, [other], [5])
    expected = layer.expected(torch.cat([text[:after], other]))[after:]
    assert relative(got, expected.double()) < 1e-5
    assert not pool.states[1, [1, 3]].any()


def test_checkpoint_of_a_decode_step(layer: Layer) -> None:
    pool = Pool(layers=2, slots=7, size=2)
    backend = Backend(pool)
    backend.prefill(layer, [normal(9, HIDDEN), normal(8, HIDDEN, seed=1)], [1, 2])
    tokens = normal(2, HIDDEN, seed=3)
    backend.decode(layer, tokens, [1, 2], ([False, True], [5, 6]))
    for cache in (pool.states, pool.windows):
        assert torch.equal(cache[1, 6], cache[1, 2])
        assert not cache[1, 5].any()


def test_segments_cover_each_request_once() -> None:
    module = importlib.import_module("sglang_ddtree.platform.gdn_backend")
    plan = module.segments([130, 1, 64], [3, 1, 2], [(100, 9), None, (64, 8)])
    pieces: list[Any] = [(s.rows.start, s.rows.stop, s.slot, s.checkpoint) for s in plan]
    assert pieces == [
        (0, 64, 3, None),
        (64, 100, 3, 9),
        (100, 128, 3, None),
        (128, 130, 3, None),
        (130, 131, 1, None),
        (131, 195, 2, 8),
    ]


def test_drafts_of_stock_sglang_are_refused(layer: Layer) -> None:
    backend = Backend(Pool(layers=2, slots=3, size=1))
    batch = SimpleNamespace(forward_mode=SimpleNamespace(is_target_verify=lambda: True))
    with pytest.raises(NotImplementedError, match="DDTREE"):
        backend.inner.forward_extend(layer.radix, batch, *layer.inputs(normal(4, HIDDEN)))
