"""The latent-attention target: DeepSeek-V3's model, also that of Kimi K2.5 and K2.6.

``DeepseekV3ForCausalLM`` (``srt/models/deepseek_v2.py`` @0.5.23): low-rank queries, one latent row
and one rotated key a token, yarn, a dense first layer, and after it a shared expert beside routed
ones, chosen by sigmoid scores in groups with a correction bias that balances their load.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sglang_ddtree.drafter.model.layers import MLP

from .model import Target
from .recipe import ModelSize

EXPERTS, EXPERTS_PER_TOKEN, EXPERT_SIZE = 8, 2, 96
ROUTED_SCALE = 2.5
QUERY_RANK, LATENT_RANK = 96, 128
NOPE_DIM, ROPE_DIM, VALUE_DIM = 32, 16, 64
BALANCE_RATE = 1e-3


def config(size: ModelSize) -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "dtype": "bfloat16",
        "vocab_size": size.vocab,
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "moe_intermediate_size": EXPERT_SIZE,
        "num_hidden_layers": size.layers,
        "num_nextn_predict_layers": 0,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "n_shared_experts": 1,
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS_PER_TOKEN,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "routed_scaling_factor": ROUTED_SCALE,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "q_lora_rank": QUERY_RANK,
        "kv_lora_rank": LATENT_RANK,
        "qk_nope_head_dim": NOPE_DIM,
        "qk_rope_head_dim": ROPE_DIM,
        "v_head_dim": VALUE_DIM,
        "rope_theta": size.rope_theta,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": size.max_positions // 4,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": size.norm_eps,
        "max_position_embeddings": size.max_positions,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "use_cache": True,
    }


def head_shrink(_: ModelSize) -> float:
    """How many times smaller the head is than the teacher's."""
    return 1.0


def checkpoint(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """One tensor an expert and projection, as published; transformers keeps them stacked."""
    tensors = {}
    for name, tensor in state.items():
        stem, _, last = name.rpartition(".")
        if not stem.endswith("mlp.experts"):
            tensors[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            if last == "down_proj":
                tensors[f"{stem}.{expert}.down_proj.weight"] = matrix
            else:
                gate, up = matrix.chunk(2)
                tensors[f"{stem}.{expert}.gate_proj.weight"] = gate
                tensors[f"{stem}.{expert}.up_proj.weight"] = up
    return tensors


@torch.no_grad()
def warm_start(model: Any, teacher: Target, sample: Tensor) -> None:
    """Embeddings, head, norms, values and feed-forwards; queries and keys are learnt anew."""
    base, source = model.model, teacher.model
    base.embed_tokens.weight.copy_(source.embed_tokens.weight)
    model.lm_head.weight.copy_(source.embed_tokens.weight)
    base.norm.weight.copy_(source.norm.weight)
    for layer, given in zip(base.layers, source.layers, strict=True):
        layer.input_layernorm.weight.copy_(given.input_layernorm.weight)
        layer.post_attention_layernorm.weight.copy_(given.post_attention_layernorm.weight)
        _attention(layer.self_attn, given.self_attn)
        if hasattr(layer.mlp, "experts"):
            _experts(layer.mlp, given.mlp)
            layer.mlp.gate.register_forward_hook(_balance)
        else:
            layer.mlp.load_state_dict(given.mlp.state_dict())


def _attention(layer: Any, given: Any) -> None:
    """The latent row starts as the teacher's values, of which each head takes its group's."""
    for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"):
        nn.init.normal_(getattr(layer, name).weight, std=0.05)
    layer.kv_a_proj_with_mqa.weight[:LATENT_RANK] = given.v_proj.weight
    layer.o_proj.weight.copy_(given.o_proj.weight)
    group = given.size.heads // given.size.kv_heads
    heads = layer.kv_b_proj.weight.unflatten(0, (given.size.heads, NOPE_DIM + VALUE_DIM))
    for head in range(given.size.heads):
        columns = torch.arange(VALUE_DIM) + head // group * VALUE_DIM
        heads[head, NOPE_DIM:] = 0
        heads[head, NOPE_DIM + torch.arange(VALUE_DIM), columns] = 1


def _experts(layer: Any, given: MLP) -> None:
    """The neurons that write most go to the shared expert, the others round the routed ones."""
    up, down = given.up_proj.weight, given.down_proj.weight
    order = (up.norm(dim=1) * down.norm(dim=0)).argsort(descending=True)
    shared, rest = order[:EXPERT_SIZE], order[EXPERT_SIZE:]
    gate = given.gate_proj.weight
    layer.shared_experts.gate_proj.weight.copy_(gate[shared])
    layer.shared_experts.up_proj.weight.copy_(up[shared])
    layer.shared_experts.down_proj.weight.copy_(down[:, shared])
    for expert in range(EXPERTS):
        chosen = rest[(torch.arange(EXPERT_SIZE) * EXPERTS + expert) % len(rest)]
        layer.experts.gate_up_proj[expert] = torch.cat([gate[chosen], up[chosen]])
        layer.experts.down_proj[expert] = down[:, chosen] / ROUTED_SCALE * EXPERTS_PER_TOKEN
    nn.init.normal_(layer.gate.weight, std=0.05)


def _balance(gate: Any, _: Any, output: tuple[Tensor, Tensor, Tensor]) -> None:
    """DeepSeek-V3's balancing without a loss (arXiv 2412.19437, section 2.1.2), while training."""
    if gate.training and torch.is_grad_enabled():
        load = torch.bincount(output[2].flatten(), minlength=EXPERTS).float()
        with torch.no_grad():
            gate.e_score_correction_bias += BALANCE_RATE * (load.mean() - load).sign()
