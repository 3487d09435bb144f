"""From the projections of a recurrent layer to its decay and its update strength."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def gdn_gates(A_log: Tensor, dt_bias: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Gates of a gated-delta-rule layer (Qwen3-Next, Qwen3.5, Qwen3.6): one decay a head.

    A_log, dt_bias: [H]. a, b: [..., H], projections of the hidden state.
    Returns log-decay g = -exp(A_log) softplus(a + dt_bias) and beta = sigmoid(b), both [..., H] in
    at least float32. Beta is rounded to b's dtype: upstream's prefill and decode do so
    (fused_gdn_gating.py:43 and fla/fused_recurrent.py:255 @0.5.23), its verify kernel does not
    (linear/fused_sigmoid_gating_recurrent.py:387), and verification must agree with decoding.
    """
    acc = torch.promote_types(a.dtype, torch.float32)
    log_decay = -A_log.to(acc).exp() * functional.softplus(a.to(acc) + dt_bias.to(acc))
    return log_decay, b.to(acc).sigmoid().to(b.dtype).to(acc)


def kda_gates(
    A_log: Tensor, dt_bias: Tensor, a: Tensor, b: Tensor, lower_bound: float | None = None
) -> tuple[Tensor, Tensor]:
    """Gates of a Kimi delta attention layer (Kimi-Linear): one decay a channel of the key.

    A_log: H values in any shape. dt_bias: [H * dk]. a: [..., H * dk]. b: [..., H].
    lower_bound: of the layer's "safe gate", g = lower_bound sigmoid(exp(A_log) (a + dt_bias)).
    Returns log-decay [..., H, dk] and beta [..., H], in at least float32; beta is not rounded
    (linear/fused_sigmoid_gating_recurrent.py:360-387 @0.5.23).
    """
    acc = torch.promote_types(a.dtype, torch.float32)
    rate = A_log.flatten().to(acc).exp().unsqueeze(-1)
    x = (a.to(acc) + dt_bias.to(acc)).unflatten(-1, (rate.shape[0], -1))
    if lower_bound is None:
        log_decay = -rate * functional.softplus(x)
    else:
        log_decay = lower_bound * torch.sigmoid(rate * x)
    return log_decay, b.to(acc).sigmoid()
