"""Configs of latent-attention models and their drafters: enough for start-up checks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from common.pairs import Pair

TOKENIZER = ("tokenizer.json", "tokenizer_config.json")

# DeepSeek-V3's published config, without its quantization.
DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "dtype": "bfloat16",
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
KIMI_TEXT: dict[str, Any] = {
    **DEEPSEEK_V3,
    "vocab_size": 163840,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 384,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.827,
    "max_position_embeddings": 262144,
    "rope_theta": 50000.0,
    "rope_scaling": {**DEEPSEEK_V3["rope_scaling"], "factor": 64.0},
}
# K2.5 and K2.6 are of one class and one shape.
KIMI_K25: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "dtype": "bfloat16",
    "text_config": KIMI_TEXT,
    "vision_config": {"model_type": "kimi_k25", "text_hidden_size": 7168},
    "media_placeholder_token_id": 163605,
    "pad_token_id": 163839,
}
GLM4_MOE_LITE: dict[str, Any] = {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "model_type": "glm4_moe_lite",
    "dtype": "bfloat16",
    "vocab_size": 154880,
    "hidden_size": 2048,
    "num_hidden_layers": 47,
    "num_attention_heads": 20,
    "max_position_embeddings": 202752,
    "rope_theta": 1000000,
}


def text_of(target: dict[str, Any]) -> dict[str, Any]:
    return target.get("text_config", target)


def drafter_of(target: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A DFlash drafter's config for ``target``, in the shape of the published ones for Kimi."""
    text = text_of(target)
    layers = text["num_hidden_layers"]
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "hidden_size": text["hidden_size"],
        "intermediate_size": 18432,
        "num_hidden_layers": 6,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 50000.0,
        "max_position_embeddings": 262144,
        "vocab_size": text["vocab_size"],
        "tie_word_embeddings": False,
        "block_size": 16,
        "num_target_layers": layers,
        "dflash_config": {
            "mask_token_id": text["vocab_size"] - 2,
            "target_layer_ids": [1, 12, 24, 35, layers - 14, layers - 3],
        },
        **changes,
    }


def write(folder: Path, config: dict[str, Any]) -> Path:
    """A model folder with this config, a tokenizer and no weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in TOKENIZER:
        shutil.copy(Pair("tiny-dense").target / name, folder / name)
    return folder
