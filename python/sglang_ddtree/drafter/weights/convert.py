"""Drafters in the format of the speculators library, as z-lab's, which SGLang loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_ddtree.drafter.errors import DrafterError
from sglang_ddtree.drafter.model.config import ARCHITECTURE


def is_speculators(config: Mapping[str, Any]) -> bool:
    return "speculators_model_type" in config


def from_speculators(config: Mapping[str, Any], target_layers: int) -> dict[str, Any]:
    """z-lab's keys from those of a speculators DFlash config.

    Its ``aux_hidden_state_layer_ids`` count the embedding as 0, so that id i is the output of
    layer i - 1; ``target_layer_ids`` count layers.

    Raises:
        DrafterError: another kind of speculator, or a reduced vocabulary.
    """
    kind = config["speculators_model_type"]
    if kind != "dflash":
        raise DrafterError(f"this is a speculators checkpoint of kind {kind!r}, not dflash")
    inner = dict(config.get("transformer_layer_config") or {})
    missing = [k for k in ("aux_hidden_state_layer_ids", "mask_token_id") if config.get(k) is None]
    if missing or not inner:
        raise DrafterError(
            "the speculators config lacks "
            + ", ".join(missing + ([] if inner else ["transformer_layer_config"]))
        )
    reduced, full = config.get("draft_vocab_size"), inner["vocab_size"]
    if reduced not in (None, full):
        raise DrafterError(
            f"the speculators drafter has its own head over {reduced} of {full} tokens; SGLang "
            "drafts with the target's head: train it with the full vocabulary"
        )
    ids = [int(i) - 1 for i in config["aux_hidden_state_layer_ids"]]
    if min(ids) < 0:
        raise DrafterError("the speculators drafter reads the target's embedding; SGLang can't")
    inner.pop("architectures", None)
    return {
        **inner,
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "tie_word_embeddings": False,
        "block_size": config.get("block_size", 16),
        "num_target_layers": target_layers,
        "dflash_config": {"mask_token_id": config["mask_token_id"], "target_layer_ids": ids},
    }
