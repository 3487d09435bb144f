"""Kinds of attention whose trees are verified; every other kind is refused by its name.

A target is served when its architecture is listed for one of three kinds, and its config asks for
nothing beyond: grouped heads (here), latent rows (``engine.startup.mla``), and gated delta rule
beside grouped heads (``engine.startup.recurrent_checks``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_ddtree.engine.startup import mla
from sglang_ddtree.engine.startup.recurrent_checks import GDN_ARCHITECTURES
from sglang_ddtree.engine.startup.recurrent_checks import (
    architecture_problem as recurrent_architecture_problem,
)

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig

# Of the architectures that SGLang captures for DFLASH, those whose every attention layer is a
# RadixAttention over paged keys and values of its own, full or within a sliding window
# (srt/models/*.py@0.5.23). Llama-4's are such layers only where no chunks are asked for.
GQA_ARCHITECTURES = (
    "BeamForCausalLM",
    "Cosmos3ForConditionalGeneration",
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "GptOssForCausalLM",
    "IQuestCoderForCausalLM",
    "InternLM3ForCausalLM",
    "InternS1ProForConditionalGeneration",
    "LagunaForCausalLM",
    "Llama4ForCausalLM",
    "LlamaForCausalLM",
    "MellumForCausalLM",
    "MiMoV2FlashForCausalLM",
    "MiMoV2ForCausalLM",
    "Ministral3ForCausalLM",
    "MistralForCausalLM",
    "MuseGlimmerForCausalLM",
    "MuseGlimmerForConditionalGeneration",
    "MuseSparkForConditionalGeneration",
    "NanbeigeForCausalLM",
    "Phi3ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "TeleFLMForCausalLM",
)
# What ``layer_types`` of a config may name.
LAYER_TYPES = ("full_attention", "sliding_attention")
GDN_LAYER_TYPES = (*LAYER_TYPES, "linear_attention")


def architecture_problem(target: ModelConfig) -> str | None:
    """Why trees are not verified in a target's layers, or ``None``."""
    if problem := recurrent_architecture_problem(target) or mla.architecture_problem(target):
        return problem
    architecture = target.hf_config.architectures[0]
    kinds = other_kinds(target)
    if kinds:
        return (
            f"{architecture} has {' and '.join(kinds)}, which a tree's mask does not reach: serve "
            "it without speculation"
        )
    if architecture not in (*GQA_ARCHITECTURES, *mla.MLA_ARCHITECTURES, *GDN_ARCHITECTURES):
        return (
            f"{architecture} is not known to attend in a way in which trees are verified: serve it "
            f"without speculation, or a model of {', '.join(GQA_ARCHITECTURES)}"
        )
    return None


def other_kinds(target: ModelConfig) -> list[str]:
    """Kinds of attention that a target's config asks for beyond those we verify trees in."""
    text, architecture = target.hf_text_config, target.hf_config.architectures[0]
    known = GDN_LAYER_TYPES if architecture in GDN_ARCHITECTURES else LAYER_TYPES
    types = dict.fromkeys(getattr(text, "layer_types", None) or ())
    kinds = [f"layers of type {name!r}" for name in types if name not in known]
    # Honoured by fa3 alone, whose verification is causal
    # (srt/layers/attention/local_attention.py:51@0.5.23).
    if size := target.attention_chunk_size:
        kinds.append(f"chunked local attention (attention_chunk_size {size})")
    if getattr(target.hf_config, "dual_chunk_attention_config", None):
        kinds.append("dual chunk attention (dual_chunk_attention_config)")
    for name in ("sparse_attention_config", "index_topk"):
        if getattr(text, name, None) or getattr(target.hf_config, name, None):
            kinds.append(f"sparse attention, to keys that an indexer picks ({name})")
    if target.is_encoder_decoder:
        kinds.append("cross attention to an encoder")
    return kinds
