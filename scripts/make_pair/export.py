"""Checkpoint folders as SGLang and transformers load them from a hub: safetensors and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from . import documents
from .drafter import Drafter
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
    config = {"architectures": ["Qwen3ForCausalLM"], **_block_config(recipe.target)}
    return {**config, "tie_word_embeddings": True}


def drafter_config(recipe: Recipe) -> dict[str, Any]:
    """Keys of the published DFlash drafters, read by ``parse_dflash_draft_config``."""
    return {
        "architectures": ["DFlashDraftModel"],
        **_block_config(recipe.drafter),
        "tie_word_embeddings": False,
        "block_size": recipe.block,
        "num_target_layers": recipe.target.layers,
        "dflash_config": {
            "mask_token": documents.MASK,
            "mask_token_id": MASK_ID,
            "target_layer_ids": list(recipe.target_layer_ids),
        },
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(json.dumps(value, indent=2) + "\n")
    os.replace(temporary, path)


def _write_weights(state: Mapping[str, Tensor], folder: Path) -> None:
    """All tensors in bfloat16; raises ValueError above the size limit of the repository."""
    tensors = {name: tensor.detach().bfloat16().contiguous() for name, tensor in state.items()}
    temporary = folder / "model.safetensors.partial"
    save_file(tensors, temporary, metadata={"format": "pt"})
    if temporary.stat().st_size > WEIGHT_LIMIT:
        raise ValueError(f"{temporary} is larger than {WEIGHT_LIMIT} bytes")
    temporary.chmod(0o644)
    os.replace(temporary, folder / "model.safetensors")


def export_target(model: AnyTarget, recipe: Recipe, tokenizer: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    fast = as_transformers(Tokenizer.from_file(str(tokenizer)), recipe.target.max_positions)
    fast.save_pretrained(str(folder))
    _write_json(folder / "config.json", target_config(recipe))
    _write_json(
        folder / "generation_config.json",
        {
            "eos_token_id": [TURN_END_ID, END_OF_TEXT_ID],
            "pad_token_id": END_OF_TEXT_ID,
            "do_sample": False,
        },
    )
    hub = isinstance(model, HubTarget)
    _write_weights(model.checkpoint() if hub else model.state_dict(), folder)


def export_drafter(model: Drafter, recipe: Recipe, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", drafter_config(recipe))
    _write_weights(model.state_dict(), folder)
