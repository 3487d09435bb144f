"""What a node costs and how the stash is addressed; the gates of both kinds of layer."""

from __future__ import annotations

import pytest
import torch

from sglang_ddtree.ops.gdn_tree import RecurrentShape, Stash, gdn_gates, kda_gates

GDN = RecurrentShape(k_heads=2, v_heads=6, k_dim=8, v_dim=4)
KDA = RecurrentShape(k_heads=3, v_heads=3, k_dim=8, v_dim=8, channel_decay=True)
QWEN36_27B = RecurrentShape(k_heads=16, v_heads=48, k_dim=128, v_dim=128)


def test_the_stash_is_a_fraction_of_snapshots() -> None:
    nodes = 65
    stash = Stash.allocate(QWEN36_27B, (48, 8, nodes), dtype=torch.bfloat16, device="meta")
    state = 48 * 128 * 128 * 4
    window = QWEN36_27B.channels * 3 * 2
    snapshots = 48 * 8 * nodes * (state + window)
    assert stash.nbytes * 40 < snapshots
    assert stash.nbytes == 48 * 8 * nodes * 53_440


def test_stash_views_share_memory() -> None:
    pool = Stash.allocate(KDA, (2, 4, 9), dtype=torch.bfloat16, device="cpu")
    assert pool.keys.dtype == pool.updates.dtype == pool.log_decay.dtype == torch.float32
    rows = pool.layer(1).requests(3)
    written = Stash(*(torch.full_like(x, i + 1.0) for i, x in enumerate(vars(rows).values())))
    rows.store(written)
    for i, x in enumerate(vars(pool).values()):
        assert (x[1, :3] == i + 1).all()
        assert (x[0] == 0).all()
        assert (x[1, 3:] == 0).all()


def test_a_float64_model_keeps_a_float64_stash() -> None:
    stash = Stash.allocate(GDN, (1, 2), dtype=torch.float64, device="meta")
    assert stash.keys.dtype == stash.updates.dtype == stash.log_decay.dtype == torch.float64


def test_gdn_gates() -> None:
    A_log, dt_bias = torch.tensor([0.0, 2.0]), torch.tensor([0.5, -1.0])
    a = torch.tensor([[1.0, -3.0], [60.0, -200.0]], dtype=torch.bfloat16)
    b = torch.tensor([[0.3, -2.0], [0.0, 9.0]], dtype=torch.bfloat16)
    log_decay, beta = gdn_gates(A_log, dt_bias, a, b)
    x = a.double() + dt_bias
    expected = -A_log.double().exp() * torch.log1p(x.exp())
    assert torch.allclose(log_decay.double(), expected, rtol=1e-6)
    assert torch.equal(beta, b.float().sigmoid().bfloat16().float())
    assert log_decay.dtype == beta.dtype == torch.float32


@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_kda_gates(lower_bound: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    A_log = torch.randn(1, 1, 2, 1, generator=generator)
    dt_bias = torch.randn(6, generator=generator)
    a = torch.randn(4, 6, generator=generator)
    b = torch.randn(4, 2, generator=generator).bfloat16()
    log_decay, beta = kda_gates(A_log, dt_bias, a, b, lower_bound)
    for head in range(2):
        rate = A_log[0, 0, head, 0].exp()
        for channel in range(3):
            x = a[:, head * 3 + channel] + dt_bias[head * 3 + channel]
            if lower_bound is None:
                expected = -rate * torch.log(1 + x.exp())
            else:
                expected = lower_bound / (1 + torch.exp(-rate * x))
            assert torch.allclose(log_decay[:, head, channel], expected, rtol=1e-5)
    assert torch.equal(beta, b.float().sigmoid())
