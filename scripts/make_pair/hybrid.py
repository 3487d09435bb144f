"""The hybrid target: Qwen3.5's text model, three gated delta rule layers to one of attention.

Qwen3.6-27B is of this architecture (``srt/models/qwen3_5.py``, text-only entry
``srt/models/qwen3_5_text.py`` @0.5.23): a gated delta net with a short convolution and three value
heads to a key head, attention with an output gate, a quarter of each head rotated, and RMSNorm
whose weights are centred on zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .model import Target
from .recipe import ModelSize

INTERVAL = 4
ROTATED_SHARE = 0.25
KEY_HEADS, VALUE_HEADS, STATE_DIM = 2, 6, 32


def config(size: ModelSize) -> dict[str, Any]:
    """``config.json`` of a ``Qwen3_5ForCausalLM``; the mrope sections are those of text."""
    pairs = int(size.head_dim * ROTATED_SHARE) // 2
    rope = {
        "rope_type": "default",
        "rope_theta": size.rope_theta,
        "partial_rotary_factor": ROTATED_SHARE,
        "mrope_interleaved": True,
        "mrope_section": [pairs - 2 * (pairs // 4), pairs // 4, pairs // 4],
    }
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "full_attention_interval": INTERVAL,
        "layer_types": [
            "full_attention" if layer % INTERVAL == INTERVAL - 1 else "linear_attention"
            for layer in range(size.layers)
        ],
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "attn_output_gate": True,
        "partial_rotary_factor": ROTATED_SHARE,
        "rope_parameters": rope,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": STATE_DIM,
        "linear_value_head_dim": STATE_DIM,
        "linear_num_key_heads": KEY_HEADS,
        "linear_num_value_heads": VALUE_HEADS,
        "mamba_ssm_dtype": "float32",
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": size.norm_eps,
        "max_position_embeddings": size.max_positions,
        "vocab_size": size.vocab,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "use_cache": True,
    }


def head_shrink(_: ModelSize) -> float:
    """How many times smaller the head is than the teacher's."""
    return 1.0


def checkpoint(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return state


@torch.no_grad()
def warm_start(model: Any, teacher: Target, sample: Tensor) -> None:
    """Embeddings, norms, feed-forwards and attention from ``teacher``; layer i from its layer i."""
    base, source = model.model, teacher.model
    base.embed_tokens.weight.copy_(source.embed_tokens.weight)
    base.norm.weight.copy_(source.norm.weight - 1)
    for layer, given in zip(base.layers, source.layers, strict=True):
        layer.input_layernorm.weight.copy_(given.input_layernorm.weight - 1)
        layer.post_attention_layernorm.weight.copy_(given.post_attention_layernorm.weight - 1)
        layer.mlp.load_state_dict(given.mlp.state_dict())
        if layer.block_type == "full_attention":
            _attention(layer.self_attn, given.self_attn)
        else:
            _delta_net(layer.linear_attn)


def _attention(layer: Any, given: Any) -> None:
    """Queries share their matrix with the gates, head by head; gates start half open."""
    order = _rotated_first(layer.head_dim)
    queries = given.q_proj.weight.unflatten(0, (-1, layer.head_dim))[:, order]
    gates = torch.zeros_like(queries).normal_(std=0.02)
    layer.q_proj.weight.copy_(torch.cat([queries, gates], dim=1).flatten(0, 1))
    keys = given.k_proj.weight.unflatten(0, (-1, layer.head_dim))[:, order]
    layer.k_proj.weight.copy_(keys.flatten(0, 1))
    layer.v_proj.weight.copy_(given.v_proj.weight)
    layer.o_proj.weight.copy_(2 * given.o_proj.weight)
    layer.q_norm.weight.copy_(given.q_norm.weight[order] - 1)
    layer.k_norm.weight.copy_(given.k_norm.weight[order] - 1)


def _rotated_first(head_dim: int) -> list[int]:
    """The teacher's dimensions in the student's order: every fourth frequency stays rotated.

    Both rotate halves. The student's first ``head_dim / 4`` dimensions turn at its own
    frequencies, which are every fourth of the teacher's; what the teacher turned at the others
    comes after them, unturned.
    """
    half, stride = head_dim // 2, round(1 / ROTATED_SHARE)
    kept = list(range(0, half, stride))
    rest = [pair for pair in range(half) if pair % stride]
    return [*kept, *(half + i for i in kept), *rest, *(half + i for i in rest)]


def _delta_net(layer: Any) -> None:
    """A convolution that passes its input, and memories from a few tokens to hundreds."""
    nn.init.normal_(layer.conv1d.weight, std=0.02)
    layer.conv1d.weight[..., -1] += 1
    nn.init.normal_(layer.in_proj_qkv.weight, std=0.05)
    nn.init.normal_(layer.out_proj.weight, std=0.01)
    layer.A_log.copy_(torch.logspace(-2.3, 0, len(layer.A_log)).log())
