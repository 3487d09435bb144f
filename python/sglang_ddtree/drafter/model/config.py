"""The ``config.json`` of a DFlash drafter: written for a target, and read back for training.

Keys are those of the published DFlash drafters, which SGLang parses with
``parse_dflash_draft_config`` (srt/speculative/dflash_utils.py:588@0.5.23).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_ddtree.drafter.errors import DrafterError
from sglang_ddtree.drafter.model.layers import Shape
from sglang_ddtree.drafter.model.rope import drafter_rope

ARCHITECTURE = "DFlashDraftModel"


@dataclass(frozen=True)
class DrafterConfig:
    """What training and checks need of a drafter's config.

    Attributes:
        shape: of its layers.
        block: tokens of one draft forward, the anchor included.
        target_layer_ids: target layers (from 0) whose outputs it reads.
        mask_token_id: stands for the positions to fill.
        windows: sliding window of each layer, in tokens with the current one; None for all.
        rope_scaling: SGLang's rope scaling, None for plain rope.
    """

    shape: Shape
    block: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    windows: tuple[int | None, ...]
    rope_scaling: dict[str, Any] | None = None


def to_json(
    shape: Shape,
    *,
    block: int,
    target_layers: int,
    target_layer_ids: Sequence[int],
    mask_token_id: int,
    mask_token: str | None = None,
    windows: Sequence[int | None] = (),
    rope_scaling: Mapping[str, Any] | None = None,
    ends: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of ``config.json``.

    Args:
        target_layers: layers of the target.
        windows: one entry a layer; empty for full attention everywhere.
        ends: ``eos_token_id`` and ``pad_token_id``, where known.
    """
    windows = list(windows) or [None] * shape.layers
    sliding = next((w for w in windows if w is not None), None)
    dflash: dict[str, Any] = {"mask_token": mask_token} if mask_token else {}
    dflash |= {"mask_token_id": mask_token_id, "target_layer_ids": list(target_layer_ids)}
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": dict(rope_scaling) if rope_scaling else None,
        "max_position_embeddings": shape.max_positions,
        "vocab_size": shape.vocab,
        "initializer_range": 0.02,
        "use_cache": True,
        "use_sliding_window": sliding is not None,
        "sliding_window": sliding,
        "layer_types": ["sliding_attention" if w else "full_attention" for w in windows],
        **(ends or {}),
        "tie_word_embeddings": False,
        "block_size": block,
        "num_target_layers": target_layers,
        "dflash_config": dflash,
    }


def from_json(config: Mapping[str, Any]) -> DrafterConfig:
    """Read a drafter's config for training.

    Raises:
        DrafterError: it describes a drafter that this trainer does not train.
    """
    nested = config.get("dflash_config") or {}
    heads = int(config["num_attention_heads"])
    bases, scaling = drafter_rope(config)
    ids = nested.get("target_layer_ids") or config.get("target_layer_ids")
    mask = nested.get("mask_token_id", config.get("mask_token_id"))
    _refuse_what_is_not_trained(config, nested)
    if not bases or not ids or mask is None:
        raise DrafterError("config.json must name rope_theta, target_layer_ids and mask_token_id")
    layer_types = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    window = config.get("sliding_window")
    return DrafterConfig(
        shape=Shape(
            hidden=int(config["hidden_size"]),
            intermediate=int(config["intermediate_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            vocab=int(config["vocab_size"]),
            rope_theta=bases[0],
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            max_positions=int(config["max_position_embeddings"]),
        ),
        block=int(nested.get("block_size", config.get("block_size", 16))),
        target_layer_ids=tuple(int(i) for i in ids),
        mask_token_id=int(mask),
        windows=tuple(window if t == "sliding_attention" else None for t in layer_types),
        rope_scaling=scaling,
    )


def _refuse_what_is_not_trained(config: Mapping[str, Any], nested: Mapping[str, Any]) -> None:
    if config.get("speculators_model_type"):
        raise DrafterError(
            "this is a speculators checkpoint: convert it first (sglang-ddtree drafter export)"
        )
    refused = {
        "a partial rotary embedding": float(config.get("partial_rotary_factor") or 1) != 1,
        "attention biases": bool(config.get("attention_bias")),
        f"activation {config.get('hidden_act')}": config.get("hidden_act", "silu") != "silu",
        "Gemma norms": bool(config.get("use_gemma_norm")),
        # Training masks a window in the context only: a block lies within it.
        "a sliding window within its block": 0
        < int(config.get("sliding_window") or 0)
        <= int(nested.get("block_size", config.get("block_size", 16))),
        "explicit causality (is_causal)": config.get("is_causal") is not None,
        "a DFlash2, Domino or sink head": any(
            nested.get(key)
            for key in (
                "selector_rank",
                "conv_kernel_size",
                "projector_type",
                "attention_sink_bias",
            )
        ),
    }
    found = [what for what, applies in refused.items() if applies]
    if found:
        raise DrafterError(f"training does not cover a drafter with {', '.join(found)}")
