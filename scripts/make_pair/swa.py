"""The sliding-window target: Gemma-4's text model, every other layer over a window.

``Gemma4ForCausalLM`` (``srt/models/gemma4_causal.py`` @0.5.23): scaled embeddings under an
unscaled tied head, a norm before and after each block, unit attention scale with query, key and
value norms, and GELU. A window of W is the token itself and the W - 1 before it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .model import Target
from .recipe import ModelSize

WINDOW = 64
GLOBAL_THETA = 1_000_000.0
# gelu(x) = x * normal cdf(x), and the cdf is close to sigmoid(1.702 x).
GELU_OVER_SILU = 1.702


def config(size: ModelSize) -> dict[str, Any]:
    """``config.json``; SGLang reads the ``swa_`` keys, transformers ``global_head_dim``."""
    return {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "dtype": "bfloat16",
        "vocab_size": size.vocab,
        "vocab_size_per_layer_input": size.vocab,
        "hidden_size": size.hidden,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_kv_shared_layers": 0,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "swa_num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "v_head_dim": size.head_dim,
        "global_head_dim": size.head_dim,
        "swa_head_dim": size.head_dim,
        "swa_v_head_dim": size.head_dim,
        "attention_k_eq_v": False,
        "sliding_window": WINDOW,
        "layer_types": [
            "full_attention" if layer % 2 else "sliding_attention" for layer in range(size.layers)
        ],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": GLOBAL_THETA},
            "sliding_attention": {"rope_type": "default", "rope_theta": size.rope_theta},
        },
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": size.norm_eps,
        "max_position_embeddings": size.max_positions,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "use_cache": True,
    }


def head_shrink(size: ModelSize) -> float:
    """How many times smaller the head is than the teacher's; it is tied to scaled embeddings."""
    return float(size.hidden**0.5)


def checkpoint(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return state


@torch.no_grad()
def warm_start(model: Any, teacher: Target, sample: Tensor) -> None:
    """The teacher's function as far as the norms around each block allow."""
    base, source = model.model, teacher.model
    scale = head_shrink(teacher.size)
    base.embed_tokens.weight.copy_(source.embed_tokens.weight / scale)
    base.norm.weight.copy_(source.norm.weight * scale)
    gains = _output_gains(teacher, sample)
    for layer, given in zip(base.layers, source.layers, strict=True):
        attention, blocks = layer.self_attn, given.self_attn
        layer.input_layernorm.weight.copy_(given.input_layernorm.weight)
        layer.pre_feedforward_layernorm.weight.copy_(given.post_attention_layernorm.weight)
        layer.post_attention_layernorm.weight.copy_(gains[blocks.o_proj])
        layer.post_feedforward_layernorm.weight.copy_(gains[given.mlp.down_proj])
        for name in ("q_proj", "k_proj", "v_proj", "o_proj", "k_norm"):
            getattr(attention, name).weight.copy_(getattr(blocks, name).weight)
        attention.q_norm.weight.copy_(blocks.q_norm.weight * blocks.size.head_dim**-0.5)
        layer.mlp.gate_proj.weight.copy_(given.mlp.gate_proj.weight / GELU_OVER_SILU)
        layer.mlp.up_proj.weight.copy_(given.mlp.up_proj.weight * GELU_OVER_SILU)
        layer.mlp.down_proj.weight.copy_(given.mlp.down_proj.weight)


def _output_gains(teacher: Target, sample: Tensor) -> dict[nn.Module, Tensor]:
    """Weights of a norm after each of the teacher's blocks that come closest to undoing it."""
    gains: dict[nn.Module, Tensor] = {}

    def measure(module: nn.Module, _: Any, output: Tensor) -> None:
        normed = F.rms_norm(output, output.shape[-1:]).flatten(0, -2)
        gains[module] = (output.flatten(0, -2) * normed).sum(0) / normed.square().sum(0)

    blocks = [
        b for layer in teacher.model.layers for b in (layer.self_attn.o_proj, layer.mlp.down_proj)
    ]
    hooks = [block.register_forward_hook(measure) for block in blocks]
    teacher.hidden_states(sample)
    for hook in hooks:
        hook.remove()
    return gains
