"""Published configs of target families: their settings as they are, their sizes tiny.

Each names where its settings are from. What only sizes a model (widths, counts of layers, heads and
experts, vocabulary, positions and windows) is small; a window and the positions that a rope scaling
starts from are short enough that prompts here go beyond them.
"""

from __future__ import annotations

from typing import Any

VOCAB, HIDDEN = 64, 64
# In place of thousands of positions.
WINDOW, ORIGINAL_POSITIONS, POSITIONS = 16, 32, 512

_COMMON: dict[str, Any] = {
    "dtype": "float32",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_DENSE: dict[str, Any] = {
    **_COMMON,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
}

# Llama-3.2-1B-Instruct: tied head, scaled rope.
LLAMA: dict[str, Any] = {
    **_DENSE,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "mlp_bias": False,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": ORIGINAL_POSITIONS,
    },
    "tie_word_embeddings": True,
}
# Phi-4-mini-instruct: rope over three quarters of a head, its factors by position, tied head.
PHI3: dict[str, Any] = {
    **_DENSE,
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "attention_bias": False,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": ORIGINAL_POSITIONS,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0] * 6,
        "long_factor": [1.0, 1.12, 1.6, 3.4, 12.0, 32.0],
    },
    "sliding_window": 262144,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "tie_word_embeddings": True,
}
# Mistral-7B-v0.3.
MISTRAL: dict[str, Any] = {
    **_DENSE,
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
}
# Qwen3-8B: query and key norms; with the yarn that its model card asks for beyond 32k tokens.
QWEN3: dict[str, Any] = {
    **_DENSE,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL_POSITIONS,
    },
    "sliding_window": None,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
}
# Qwen3-30B-A3B.
QWEN3_MOE: dict[str, Any] = {
    **_DENSE,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
}
# Qwen3.6-27B's text model.
QWEN3_5: dict[str, Any] = {
    **_DENSE,
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "attention_bias": False,
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "mamba_ssm_dtype": "float32",
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [1, 1, 0],
    },
    "tie_word_embeddings": False,
}
_LATENT: dict[str, Any] = {
    **_COMMON,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "moe_intermediate_size": 32,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}
_YARN: dict[str, Any] = {
    "type": "yarn",
    "original_max_position_embeddings": ORIGINAL_POSITIONS,
    "beta_fast": 32,
    "beta_slow": 1,
}
DEEPSEEK_V3: dict[str, Any] = {
    **_LATENT,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "routed_scaling_factor": 2.5,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": {**_YARN, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0},
}
# DeepSeek-V2-Lite: no query rank, softmax scores that are not renormalised.
DEEPSEEK_V2_LITE: dict[str, Any] = {
    **_LATENT,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "q_lora_rank": None,
    "n_shared_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": False,
    "scoring_func": "softmax",
    "topk_method": "greedy",
    "routed_scaling_factor": 1.0,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": {**_YARN, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707},
}
# DeepSeek-V2-Chat: experts in groups by their best score.
DEEPSEEK_V2: dict[str, Any] = {
    **DEEPSEEK_V2_LITE,
    "q_lora_rank": 24,
    "n_group": 4,
    "topk_group": 2,
    "topk_method": "group_limited_greedy",
    "routed_scaling_factor": 16.0,
    "rope_scaling": {**_YARN, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0},
}
# GLM-4.7-Flash: rope in pairs of neighbours, without scaling.
GLM4_MOE_LITE: dict[str, Any] = {
    **_LATENT,
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "model_type": "glm4_moe_lite",
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "topk_method": "noaux_tc",
    "routed_scaling_factor": 1.8,
    "partial_rotary_factor": 1.0,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000,
    "rope_scaling": None,
}
# Kimi-K2.5's text model: no groups.
KIMI_K2_TEXT: dict[str, Any] = {
    **DEEPSEEK_V3,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.827,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "rope_scaling": {**DEEPSEEK_V3["rope_scaling"], "factor": 64.0},
}
# Gemma-4: five layers over a window and one over all, which has wider heads of which a quarter is
# rotated; embeddings are scaled, the head is tied to them and its logits are capped.
_GEMMA4_TEXT: dict[str, Any] = {
    **_DENSE,
    "model_type": "gemma4_text",
    "num_hidden_layers": 6,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "global_head_dim": 32,
    "num_global_key_value_heads": None,
    "attention_k_eq_v": False,
    "attention_bias": False,
    "sliding_window": WINDOW,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"],
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 1000000.0,
            "partial_rotary_factor": 0.25,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "hidden_activation": "gelu_pytorch_tanh",
    "final_logit_softcapping": 30.0,
    "rms_norm_eps": 1e-6,
    "use_bidirectional_attention": None,
    "use_double_wide_mlp": False,
    "enable_moe_block": False,
    "tie_word_embeddings": True,
}
# The text model by itself: without the wider heads, which SGLang reads within the published class.
GEMMA4_TEXT: dict[str, Any] = {
    **_GEMMA4_TEXT,
    "architectures": ["Gemma4ForCausalLM"],
    "global_head_dim": 16,
    "v_head_dim": 16,
    "swa_head_dim": 16,
    "swa_v_head_dim": 16,
    "swa_num_key_value_heads": 2,
}

FAMILIES = {
    "llama-3.2": LLAMA,
    "phi-4-mini": PHI3,
    "mistral": MISTRAL,
    "qwen3": QWEN3,
    "qwen3-moe": QWEN3_MOE,
    "qwen3.5": QWEN3_5,
    "deepseek-v3": DEEPSEEK_V3,
    "deepseek-v2-lite": DEEPSEEK_V2_LITE,
    "deepseek-v2": DEEPSEEK_V2,
    "glm-4.7-flash": GLM4_MOE_LITE,
    "kimi-k2": KIMI_K2_TEXT,
    "gemma-4": GEMMA4_TEXT,
}
