"""What a DFlash drafter's checkpoint holds, and whether it is all there.

SGLang's loader skips tensors it does not know and leaves parameters without a tensor at their
random initial values (srt/models/dflash.py: DFlashDraftModel.load_weights@0.5.23), so an
incomplete checkpoint serves, and merely drafts badly. Names and shapes are compared here instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open

# int64 ids of the tokens that a drafter with a draft vocabulary may propose, ascending.
DRAFT_VOCABULARY = "draft_token_ids"
# Tensors of drafters whose heads DDTREE does not drive, by name fragment.
FOREIGN_HEADS = {
    "candidate_selector": "DFlash2 selector",
    "lilicorr": "LiLiCorr",
    "prefix_gru": "Domino",
    "embed_proj": "Domino",
}


def expected_tensors(config: Mapping[str, Any], num_context_layers: int) -> dict[str, list[int]]:
    """Name and shape of every tensor of a plain DFlash drafter.

    Args:
        config: the drafter's ``config.json``.
        num_context_layers: how many target layers feed it.
    """
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    shapes = {
        "fc.weight": [hidden, num_context_layers * hidden],
        "hidden_norm.weight": [hidden],
        "norm.weight": [hidden],
    }
    layer = {
        "input_layernorm.weight": [hidden],
        "post_attention_layernorm.weight": [hidden],
        "self_attn.q_proj.weight": [heads * head_dim, hidden],
        "self_attn.k_proj.weight": [kv_heads * head_dim, hidden],
        "self_attn.v_proj.weight": [kv_heads * head_dim, hidden],
        "self_attn.o_proj.weight": [hidden, heads * head_dim],
        "self_attn.q_norm.weight": [head_dim],
        "self_attn.k_norm.weight": [head_dim],
        "mlp.gate_proj.weight": [inner, hidden],
        "mlp.up_proj.weight": [inner, hidden],
        "mlp.down_proj.weight": [hidden, inner],
    }
    if config.get("attention_bias"):
        layer |= {
            f"self_attn.{p}_proj.bias": layer[f"self_attn.{p}_proj.weight"][:1] for p in "qkvo"
        }
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def stored_tensors(folder: Path) -> dict[str, list[int]]:
    """Name and shape of every tensor in a folder of safetensors files, without loading them.

    Names come without the optional ``model.`` prefix that SGLang's loader ignores too.
    """
    shapes: dict[str, list[int]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - safe_open is not a mapping
                shapes[name.removeprefix("model.")] = tensors.get_slice(name).get_shape()
    return shapes


def coverage_problems(folder: Path, num_context_layers: int) -> list[str]:
    """What is missing, misshapen or unknown in a drafter's checkpoint; empty when it fits.

    A folder without safetensors files gives no verdict: other formats are SGLang's to load.
    """
    stored = stored_tensors(folder)
    if not stored:
        return []
    config = json.loads((folder / "config.json").read_text())
    foreign = {head for name in stored for mark, head in FOREIGN_HEADS.items() if mark in name}
    if foreign:
        return [f"drafters with a {head} head are not driven by DDTREE yet" for head in foreign]
    expected = expected_tensors(config, num_context_layers)
    missing = sorted(expected.keys() - stored.keys())
    unknown = sorted(
        name
        for name in stored.keys() - expected.keys()
        if not name.startswith(("embed_tokens.", "lm_head."))
        and "rotary_emb" not in name
        and name != DRAFT_VOCABULARY
    )
    misshapen = [
        f"{name} is {stored[name]}, expected {expected[name]}"
        for name in sorted(expected.keys() & stored.keys())
        if stored[name] != expected[name]
    ]
    problems = []
    if missing:
        problems.append(f"the drafter's checkpoint lacks {some(missing)}; export it again")
    if unknown:
        problems.append(
            f"the drafter's checkpoint holds tensors of no DFlash drafter: {some(unknown)}"
        )
    if misshapen:
        problems.append(f"the drafter's weights don't fit its config.json: {some(misshapen)}")
    return problems


def vocabulary_problems(folder: Path, vocab: int) -> list[str]:
    """What is wrong with a drafter's draft vocabulary; empty where it has none, too.

    Args:
        vocab: tokens of the target.
    """
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as tensors:
            if DRAFT_VOCABULARY not in tensors.keys():  # noqa: SIM118 - no mapping
                continue
            ids = tensors.get_tensor(DRAFT_VOCABULARY)
        fits = ids.dim() == 1 and len(ids) > 0 and str(ids.dtype) == "torch.int64"
        if not fits or bool((ids.diff() <= 0).any()) or not 0 <= ids[0] <= ids[-1] < vocab:
            return [f"{DRAFT_VOCABULARY} must be int64 ids below {vocab}, each once, ascending"]
    return []


def some(items: list[str], limit: int = 4) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + more
