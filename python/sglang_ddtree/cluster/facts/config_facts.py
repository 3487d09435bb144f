"""Facts of a target from its ``config.json``, with sizes that no config has given beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sglang_ddtree.cluster.facts.models import DrafterFacts, KvLayers, ModelFacts, Recurrent

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class ConfigError(ValueError):
    """A model folder or config without what a plan needs; the message names it."""


def read_record(record: Mapping[str, Any]) -> ModelFacts:
    """Facts of a file in ``configs/``: a published config and the sizes beside it.

    Its fields: name, repository, config, weight_bytes, active_params, expert_bits (of a quantised
    routed expert, 16 by default), drafter (repository, config,
    weight_bytes, captured_layers), sources (group of
    numbers to where it is from), uncertain, server_arguments.
    """
    drafter = record["drafter"]
    return _facts(
        record["config"],
        name=record["name"],
        repository=record["repository"],
        weight_bytes=record["weight_bytes"],
        active_params=record["active_params"],
        expert_bits=record.get("expert_bits", 16),
        drafter=_drafter(
            drafter["config"],
            drafter["repository"],
            drafter["weight_bytes"],
            drafter["captured_layers"],
        ),
        sources=record["sources"],
        uncertain=tuple(record["uncertain"]),
        server_arguments=tuple(record.get("server_arguments", ())),
    )


def read_folder(folder: Path, drafter_folder: Path | None = None) -> ModelFacts:
    """Facts of a model on disk; weights are the sizes of its ``*.safetensors``.

    Without a drafter's folder its sizes count as zero and only plain decoding can be planned.
    Raises ConfigError.
    """
    config = _read_config(folder)
    size = _weights(folder)
    element = _element_bytes(_text(config))
    drafter = DrafterFacts(None, 1, layers=0, kv_heads=1, head_dim=1, weight_bytes=0, captured=0)
    if drafter_folder is not None:
        drafter = _read_drafter(drafter_folder)
    facts = _facts(
        config,
        name=folder.resolve().name,
        repository=str(folder),
        weight_bytes=size,
        active_params=0,
        expert_bits=8 * element,
        drafter=drafter,
        sources={"config": str(folder / "config.json"), "weight_bytes": "files"},
        uncertain=(),
        server_arguments=(),
    )
    return _with_active_params(facts, element)


def _facts(config: Mapping[str, Any], *, expert_bits: float, **given: Any) -> ModelFacts:
    text = _text(config)
    try:
        layers, hidden, heads = (
            int(text[key]) for key in ("num_hidden_layers", "hidden_size", "num_attention_heads")
        )
        kinds = _layer_kinds(text, layers)
        element = _element_bytes(text)
        vocabulary = int(text["vocab_size"])
        table = vocabulary * hidden * element
        tied = bool(text.get("tie_word_embeddings", False))
        experts = int(text.get("num_experts") or text.get("n_routed_experts") or 0)
        return ModelFacts(
            layers=layers,
            hidden=hidden,
            heads=heads,
            vocabulary=vocabulary,
            kv=_kv_layers(text, kinds, hidden // heads),
            recurrent=_recurrent(text, kinds.count("linear_attention")),
            # A tied table is read as a whole by the head, so no part of it is left out of a step.
            embedding_bytes=0 if tied else table,
            head_bytes=table,
            replicated_bytes=_replicated_bytes(text, layers, hidden, element),
            experts=experts,
            experts_per_token=int(text["num_experts_per_tok"]) if experts else 0,
            expert_bytes=_expert_bytes(text, experts, layers, hidden, expert_bits),
            context_limit=int(text["max_position_embeddings"]),
            **given,
        )
    except KeyError as error:
        raise ConfigError(f"{given['name']}: its config has no {error}") from error


def _text(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's part, which multi-modal configs nest."""
    return {**config, **config.get("text_config", {})}


def _element_bytes(text: Mapping[str, Any]) -> int:
    return _BYTES.get(str(text.get("dtype") or text.get("torch_dtype")), 2)


def _layer_kinds(text: Mapping[str, Any], layers: int) -> list[str]:
    """The kind of each layer, as ``layer_types`` names them."""
    if text.get("layer_types"):
        return list(text["layer_types"])
    if interval := text.get("full_attention_interval"):
        other = "linear_attention"
    elif interval := text.get("sliding_window_pattern"):
        other = "sliding_attention"
    else:
        interval, other = 1, ""
    return ["full_attention" if (i + 1) % interval == 0 else other for i in range(layers)]


def _kv_layers(text: Mapping[str, Any], kinds: list[str], default_dim: int) -> tuple[KvLayers, ...]:
    full, sliding = kinds.count("full_attention"), kinds.count("sliding_attention")
    if rank := text.get("kv_lora_rank"):
        row = rank + text["qk_rope_head_dim"]
        # Scores over the whole row, values over its first `rank` columns.
        return (KvLayers(len(kinds), heads=1, row=row, score=row + rank, latent=True),)
    dim, heads = int(text.get("head_dim") or default_dim), int(text["num_key_value_heads"])
    found = []
    if sliding:
        window = int(text["sliding_window"])
        found.append(KvLayers(sliding, heads, row=2 * dim, score=2 * dim, window=window))
    if full:
        dim = int(text.get("global_head_dim") or dim)
        heads = int(text.get("num_global_key_value_heads") or heads)
        found.append(KvLayers(full, heads, row=2 * dim, score=2 * dim))
    return tuple(found)


def _recurrent(text: Mapping[str, Any], layers: int) -> Recurrent | None:
    if not layers:
        return None
    return Recurrent(
        layers=layers,
        key_heads=int(text["linear_num_key_heads"]),
        value_heads=int(text["linear_num_value_heads"]),
        key_dim=int(text["linear_key_head_dim"]),
        value_dim=int(text["linear_value_head_dim"]),
        conv_kernel=int(text["linear_conv_kernel_dim"]),
        # SGLang's default where a config does not say (srt/configs/mamba_utils.py@0.5.23).
        state_element_bytes=_BYTES[str(text.get("mamba_ssm_dtype") or "float32")],
    )


def _replicated_bytes(text: Mapping[str, Any], layers: int, hidden: int, element: int) -> int:
    """MLA's down-projections of queries and latents, which are not sharded."""
    if "kv_lora_rank" not in text:
        return 0
    rows = (text.get("q_lora_rank") or 0) + text["kv_lora_rank"] + text["qk_rope_head_dim"]
    return layers * hidden * rows * element


def _expert_bytes(
    text: Mapping[str, Any], experts: int, layers: int, hidden: int, bits: float
) -> int:
    """Routed experts of all layers: gate, up and down of each."""
    if not experts:
        return 0
    sparse = layers - int(text.get("first_k_dense_replace") or 0)
    return int(sparse * experts * 3 * hidden * int(text["moe_intermediate_size"]) * bits / 8)


def _read_drafter(folder: Path) -> DrafterFacts:
    config = _read_config(folder)
    # Older drafters have these fields at the top level.
    layer_ids = {**config, **config.get("dflash_config", {})}.get("target_layer_ids")
    if layer_ids is None:
        raise ConfigError(f"{folder} is no DFlash drafter: its config has no target_layer_ids")
    return _drafter(config, str(folder), _weights(folder), len(layer_ids))


def _drafter(
    config: Mapping[str, Any], repository: str | None, weight_bytes: int, captured: int
) -> DrafterFacts:
    try:
        return DrafterFacts(
            repository,
            block=int(config["block_size"]),
            layers=int(config["num_hidden_layers"]),
            kv_heads=int(config["num_key_value_heads"]),
            head_dim=int(config["head_dim"]),
            weight_bytes=weight_bytes,
            captured=captured,
        )
    except KeyError as error:
        raise ConfigError(f"drafter {repository}: its config has no {error}") from error


def _with_active_params(facts: ModelFacts, element: int) -> ModelFacts:
    """What one token multiplies: everything but the embedding and the experts it is not sent to."""
    idle = float(facts.embedding_bytes)
    if facts.experts:
        idle += facts.expert_bytes * (1 - facts.experts_per_token / facts.experts)
    return replace(facts, active_params=int((facts.weight_bytes - idle) / element))


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / "config.json").read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"{folder} has no config.json: name a model folder") from error
    except ValueError as error:
        raise ConfigError(f"{folder / 'config.json'} is no JSON: {error}") from error


def _weights(folder: Path) -> int:
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if not size:
        raise ConfigError(f"{folder} has no *.safetensors, so the size of the weights is unknown")
    return size
