"""Checkpoint folders as SGLang and transformers load them from a hub: safetensors and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sglang_ddtree.drafter.files import write_json, write_tensors
from sglang_ddtree.drafter.model import config
from sglang_ddtree.drafter.model.model import Drafter
from sglang_ddtree.drafter.weights.export import write_drafter

from . import documents
from .hub import ARCHITECTURES, HubTarget
from .recipe import ModelSize, Recipe
from .stages import AnyTarget
from .tokens import END_OF_TEXT_ID, MASK_ID, TURN_END_ID, as_transformers

WEIGHT_LIMIT = 8 * 2**20


def _block_config(size: ModelSize) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": size.norm_eps,
        "rope_theta": size.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": size.max_positions,
        "vocab_size": size.vocab,
        "initializer_range": 0.02,
        "use_cache": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "layer_types": ["full_attention"] * size.layers,
        "eos_token_id": TURN_END_ID,
        "pad_token_id": END_OF_TEXT_ID,
    }


def target_config(recipe: Recipe) -> dict[str, Any]:
    if recipe.architecture != "dense":
        ends = {"eos_token_id": TURN_END_ID, "pad_token_id": END_OF_TEXT_ID}
        return {**ARCHITECTURES[recipe.architecture].config(recipe.target), **ends}
    architectures = {"architectures": ["Qwen3ForCausalLM"]}
    return {**architectures, **_block_config(recipe.target), "tie_word_embeddings": True}


def drafter_config(recipe: Recipe) -> dict[str, Any]:
    return config.to_json(
        recipe.drafter,
        block=recipe.block,
        target_layers=recipe.target.layers,
        target_layer_ids=recipe.target_layer_ids,
        mask_token_id=MASK_ID,
        mask_token=documents.MASK,
        ends={"eos_token_id": TURN_END_ID, "pad_token_id": END_OF_TEXT_ID},
    )


def _check_size(folder: Path) -> None:
    """Raises ValueError above the size limit of the repository."""
    file = folder / "model.safetensors"
    if file.stat().st_size > WEIGHT_LIMIT:
        raise ValueError(f"{file} is larger than {WEIGHT_LIMIT} bytes")


def export_target(model: AnyTarget, recipe: Recipe, tokenizer: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    fast = as_transformers(Tokenizer.from_file(str(tokenizer)), recipe.target.max_positions)
    fast.save_pretrained(str(folder))
    write_json(folder / "config.json", target_config(recipe))
    write_json(
        folder / "generation_config.json",
        {
            "eos_token_id": [TURN_END_ID, END_OF_TEXT_ID],
            "pad_token_id": END_OF_TEXT_ID,
            "do_sample": False,
        },
    )
    hub = isinstance(model, HubTarget)
    state = model.checkpoint() if hub else model.state_dict()
    tensors = {name: tensor.bfloat16() for name, tensor in state.items()}
    write_tensors(folder / "model.safetensors", tensors)
    _check_size(folder)


def export_drafter(model: Drafter, recipe: Recipe, folder: Path) -> None:
    write_drafter(folder, drafter_config(recipe), model.state_dict())
    _check_size(folder)
