"""The CPU platform's version of the drafter's fused norm and rotary embedding."""

from __future__ import annotations

import importlib

import pytest
import torch

draft_ops = importlib.import_module("sglang_ddtree.platform.draft_ops")
modeling = importlib.import_module("transformers.models.qwen3.modeling_qwen3")

Q_HEADS, KV_HEADS, DIM, EPS = 6, 2, 64, 1e-6


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.bfloat16, 2e-2)])
def test_norm_and_rotation_in_place(dtype: torch.dtype, tolerance: float) -> None:
    """Against Qwen3's layers in transformers, at positions in any order."""
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(9, (Q_HEADS + 2 * KV_HEADS) * DIM, generator=generator).to(dtype)
    positions = torch.tensor([0, 7, 3, 500, 2, 2, 1023, 40, 41])
    config = modeling.Qwen3Config(head_dim=DIM, rms_norm_eps=EPS)
    norms = [modeling.Qwen3RMSNorm(DIM, EPS) for _ in range(2)]
    for norm in norms:
        norm.weight.data.normal_(1.0, 0.3, generator=generator)
    everywhere = torch.arange(1024)[None]
    cos, sin = modeling.Qwen3RotaryEmbedding(config)(torch.zeros(1), everywhere)
    table = torch.cat([cos[0, :, : DIM // 2], sin[0, :, : DIM // 2]], dim=-1)

    sizes = [Q_HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM]
    q, k, v = (part.unflatten(-1, (-1, DIM)) for part in qkv.clone().float().split(sizes, dim=-1))
    with torch.no_grad():
        q, k = modeling.apply_rotary_pos_emb(
            norms[0](q)[None], norms[1](k)[None], cos[:, positions], sin[:, positions], 2
        )
    weights = [norm.weight.detach().to(dtype) for norm in norms]
    draft_ops.table_qk_norm_rope_(qkv, positions, *weights, table, Q_HEADS, KV_HEADS, DIM, EPS)
    got = [part.unflatten(-1, (-1, DIM)) for part in qkv.float().split(sizes, dim=-1)]
    assert torch.equal(got[2], v)
    for part, expected in zip(got[:2], (q[0], k[0]), strict=True):
        assert (part - expected).abs().max() <= tolerance * expected.abs().max()
