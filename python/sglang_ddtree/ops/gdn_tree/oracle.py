"""A recurrent layer node by node from the parent's state: what the tree form is held against.

One request, float64, nothing shared with the tensor code, and nothing of it runs in a server.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def recurrence_oracle(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor,
    parents: Sequence[int],
    *,
    scale: float | None = None,
    l2norm: bool = True,
    delta: bool = True,
) -> tuple[Tensor, Tensor]:
    """Outputs [N, H, dv] and states [N, H, dv, dk] of the nodes, in float64.

    q, k: [N, Hk, dk]; v: [N, H, dv]; log_decay: [N, H] or [N, H, dk]; beta: [N, H]; state:
    [H, dv, dk]; parents: negative where a node continues from `state`.
    """
    q, k, v, log_decay, beta, state = (x.double() for x in (q, k, v, log_decay, beta, state))
    group = v.shape[1] // k.shape[1]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    outs: list[Tensor] = []
    states: list[Tensor] = []
    for i, up in enumerate(parents):
        query, key = (x[i].repeat_interleave(group, dim=0) for x in (q, k))
        if l2norm:
            query, key = (x * (x.pow(2).sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (query, key))
        decay = log_decay[i].exp().reshape(v.shape[1], 1, -1)
        memory = (state if up < 0 else states[up]) * decay
        target = v[i]
        if delta:
            target = target - torch.einsum("hvk,hk->hv", memory, key)
        memory = memory + torch.einsum("hv,hk->hvk", beta[i].unsqueeze(-1) * target, key)
        outs.append(torch.einsum("hvk,hk->hv", memory, query) * scale)
        states.append(memory)
    return torch.stack(outs), torch.stack(states)


def conv_oracle(
    x: Tensor,
    history: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    parents: Sequence[int],
    *,
    silu: bool = True,
) -> tuple[Tensor, Tensor]:
    """Convolved nodes [N, C] and the window [N, C, K - 1] after each of them, in float64.

    x: [N, C]; history: [T, C], every input before the root, T >= 0; weight: [C, K], K > 1.
    """
    rows, past = list(x.double()), list(history.double())
    nothing = torch.zeros(x.shape[1], dtype=torch.float64)
    kernel_size = weight.shape[1]
    outs, windows = [], []
    for node in range(len(rows)):
        walk, i = [], node
        while i >= 0:
            walk.append(rows[i])
            i = parents[i]
        newest_first = walk + past[::-1] + [nothing] * kernel_size
        total = nothing if bias is None else bias.double()
        for back in range(kernel_size):
            total = total + newest_first[back] * weight[:, kernel_size - 1 - back].double()
        outs.append(total / (1 + torch.exp(-total)) if silu else total)
        windows.append(torch.stack(newest_first[: kernel_size - 1][::-1], -1))
    return torch.stack(outs), torch.stack(windows)
