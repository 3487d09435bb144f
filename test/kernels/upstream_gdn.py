"""SGLang's own tree kernels of recurrent layers, run by Triton's interpreter on the CPU.

A program, because `TRITON_INTERPRET` must be set before Triton is imported:
`upstream_gdn.py INPUTS OUTPUTS`, both dictionaries of tensors saved by torch.
"""

from __future__ import annotations

import sys

import torch
from sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent import (
    fused_sigmoid_gating_delta_rule_update,
)
from sglang.kernels.ops.mamba.causal_conv1d_triton import causal_conv1d_update
from torch import Tensor


def links(parents: list[int]) -> tuple[Tensor, Tensor]:
    """First child and next sibling of each node, -1 where there is none."""
    child, sibling = ([-1] * len(parents) for _ in range(2))
    last: dict[int, int] = {}
    for i, up in enumerate(parents):
        if up in last:
            sibling[last[up]] = i
        elif up >= 0:
            child[up] = i
        last[up] = i
    return torch.tensor([child], dtype=torch.int32), torch.tensor([sibling], dtype=torch.int32)


def run(inputs: dict) -> dict[str, Tensor]:
    """Output, state and window of every node of one tree."""
    parents, shape = inputs["parents"], inputs["shape"]
    nodes = len(parents)
    slot, row = torch.tensor([1], dtype=torch.int32), torch.tensor([0], dtype=torch.int32)
    child, sibling = links(parents)
    parent = torch.full_like(child, -7)  # written by the convolution
    window = inputs["window"]
    windows = torch.full((1, nodes, *window.shape[1:]), torch.nan)
    conv = causal_conv1d_update(
        inputs["mixed_qkv"].mT.contiguous(),
        torch.cat([torch.full_like(window, torch.nan), window]),
        inputs["conv_weights"],
        inputs["bias"],
        "silu",
        conv_state_indices=slot,
        intermediate_conv_window=windows,
        intermediate_state_indices=row,
        retrieve_next_token=child,
        retrieve_next_sibling=sibling,
        retrieve_parent_token=parent,
    ).mT.contiguous()
    q, k, v = shape.split(conv)
    state = inputs["state"]
    states = torch.full((1, nodes, *state.shape[1:]), torch.nan)
    out = fused_sigmoid_gating_delta_rule_update(
        A_log=inputs["A_log"],
        dt_bias=inputs["dt_bias"],
        q=q.contiguous(),
        k=k.contiguous(),
        v=v.contiguous(),
        a=inputs["a"][0],
        b=inputs["b"][0],
        softplus_beta=1.0,
        softplus_threshold=20.0,
        initial_state_source=torch.cat([torch.full_like(state, torch.nan), state]),
        initial_state_indices=slot,
        use_qk_l2norm_in_kernel=True,
        cu_seqlens=torch.tensor([0, nodes], dtype=torch.int32),
        is_kda=shape.channel_decay,
        lower_bound=inputs["lower_bound"],
        disable_state_update=True,
        intermediate_states_buffer=states,
        intermediate_state_indices=row,
        cache_steps=nodes,
        retrieve_parent_token=parent,
    )
    return {"out": out, "states": states[0], "windows": windows[0]}


if __name__ == "__main__":
    torch.save([run(x) for x in torch.load(sys.argv[1], weights_only=False)], sys.argv[2])
