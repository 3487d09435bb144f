"""Which attention trees are verified in: every architecture that SGLang captures was judged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from common.pairs import Pair

from server.asking import answers_of
from server.launch_cases import assert_refused, outcomes_of
from server.launch_probe import STARTED

pytestmark = pytest.mark.no_server

PAIR = Pair("tiny-dense")
SERVER = [
    *("--model-path", str(PAIR.target), "--dtype", "float32"),
    *("--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", str(PAIR.drafter)),
]

# Captured by SGLang, and not on our lists because of the layers named.
JUDGED = {
    "MLA, not tried": {
        "KimiK3ForConditionalGeneration",
        "KimiK3LinearForCausalLM",
        "MistralLarge3ForCausalLM",
    },
    "an indexer": {
        "DeepseekV32ForCausalLM",
        "Glm5NextForConditionalGeneration",
        "GlmMoeDsaForCausalLM",
        "MiniMaxM3SparseForConditionalGeneration",
        "Qwen4ExpForConditionalGeneration",
    },
    "recurrent layers, not tried": {
        "InternS2MobiusForConditionalGeneration",
        "InternS2PreviewForConditionalGeneration",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "Lfm2VlForConditionalGeneration",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "NemotronH_Nano_Omni_Reasoning_V3",
        "NemotronH_Nano_VL_V2",
        "NemotronH_Omni_Reasoning_V3",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    },
    "drafts for other targets, and an encoder": {
        "DeepseekV3ForCausalLMNextN",
        "Gemma4AssistantForCausalLM",
        "Gemma4UnifiedAssistantForCausalLM",
        "Glm4MoeLiteForCausalLMNextN",
        "Glm5NextForConditionalGenerationNextN",
        "GlmMoeDsaForCausalLMNextN",
        "Lfm2BidirectionalModel",
        "LlamaForCausalLMEagle",
        "LlamaForCausalLMEagle3",
        "MiMoV2MTP",
        "MistralForCausalLMEagle",
        "MistralLarge3ForCausalLMEagle",
        "NemotronHForCausalLMMTP",
        "Qwen3MoeForCausalLMMTP",
        "Qwen3NextForCausalLMMTP",
    },
}
ASK = """
import json
from types import SimpleNamespace
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.layers.attention.hybrid_attn_backend import HybridAttnBackend
from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend
from sglang.srt.layers.attention.minimax_sparse_backend import MiniMaxHybridAttnBackend
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.models.registry import ModelRegistry
from sglang_ddtree.engine.attention.kinds import GQA_ARCHITECTURES
from sglang_ddtree.engine.attention.registry import verifying_backend
from sglang_ddtree.engine.startup.mla import MLA_ARCHITECTURES
from sglang_ddtree.engine.config_error import DDTreeConfigError
from sglang_ddtree.engine.startup.recurrent_checks import GDN_ARCHITECTURES
from sglang_ddtree.platform.attention import TorchTreeAttnBackend

def bare(cls, **attributes):
    made = cls.__new__(cls)
    vars(made).update(attributes)
    return made

def verified_by(backend):
    try:
        return type(verifying_backend(backend)).__name__
    except DDTreeConfigError as error:
        return str(error)

tree, triton = bare(TorchTreeAttnBackend), bare(TritonAttnBackend)
split = bare(
    HybridAttnBackend, prefill_backend=triton, decode_backend=tree, spec_attn_is_decode=True
)
backends = {
    "plain": triton,
    "split": split,
    "hybrid": bare(HybridLinearAttnBackend, full_attn_backend=tree),
    "hybrid, split": bare(HybridLinearAttnBackend, full_attn_backend=split),
    "another": object(),
    "another's full layers": bare(MiniMaxHybridAttnBackend, full_attn_backend=tree),
    "another's dense layers": bare(MiniMaxHybridAttnBackend, dense_backend=triton),
}
captured = [
    name
    for name, model_class in ModelRegistry.models.items()
    if hasattr(model_class, "set_dflash_layers_to_capture")
]
listed = [*GQA_ARCHITECTURES, *MLA_ARCHITECTURES, *GDN_ARCHITECTURES]
found = {name: verified_by(backend) for name, backend in backends.items()}
print(json.dumps({"captured": captured, "listed": listed, "backends": found}))
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    return answers_of(ASK, None)


def test_listed_architectures_are_captured(answers: dict[str, Any]) -> None:
    assert len(set(answers["listed"])) == len(answers["listed"])
    assert set(answers["listed"]) <= set(answers["captured"])


def test_every_captured_architecture_was_judged(answers: dict[str, Any]) -> None:
    assert set(answers["captured"]) - set(answers["listed"]) == set().union(*JUDGED.values())


def test_wrappers_are_seen_through_or_refused(answers: dict[str, Any]) -> None:
    found = answers["backends"]
    assert found["plain"] == "TritonAttnBackend"
    assert {found[name] for name in ("split", "hybrid", "hybrid, split")} == {
        "TorchTreeAttnBackend"
    }
    for name in ("another", "another's full layers", "another's dense layers"):
        assert "in which trees are not verified" in found[name], name


# What the target's config says instead, and why it is refused.
TARGETS: dict[str, tuple[dict[str, Any], str]] = {
    "Qwen2, which is not captured": (
        {"architectures": ["Qwen2ForCausalLM"]},
        "SGLang's Qwen2ForCausalLM has no set_dflash_layers_to_capture",
    ),
    "Gemma-3, which is not captured": (
        {"architectures": ["Gemma3ForCausalLM"]},
        "SGLang's Gemma3ForCausalLM has no set_dflash_layers_to_capture",
    ),
    "an encoder's, which is not captured": (
        {"architectures": ["MllamaForConditionalGeneration"]},
        "SGLang's MllamaForConditionalGeneration has no set_dflash_layers_to_capture",
    ),
    "unknown architecture": (
        {"architectures": ["NoSuchForCausalLM"]},
        "SGLang has no model class for NoSuchForCausalLM",
    ),
    "Llama-4": (
        {"architectures": ["Llama4ForCausalLM"], "attention_chunk_size": 8192},
        "Llama4ForCausalLM has chunked local attention (attention_chunk_size 8192)",
    ),
    "chunked local attention elsewhere": (
        {"attention_chunk_size": 512},
        "Qwen3ForCausalLM has chunked local attention (attention_chunk_size 512)",
    ),
    "layers of another type": (
        {"layer_types": ["full_attention", "chunked_attention"] * 2},
        "Qwen3ForCausalLM has layers of type 'chunked_attention'",
    ),
    "dual chunks": (
        {"dual_chunk_attention_config": {"chunk_size": 8192}},
        "Qwen3ForCausalLM has dual chunk attention",
    ),
    "MiniMax-M3": (
        {
            "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
            "sparse_attention_config": {
                "sparse_attention_freq": [0, 0, 1, 1],
                "sparse_topk_blocks": 16,
                "sparse_block_size": 128,
                "sparse_index_dim": 64,
                "sparse_num_index_heads": 2,
            },
        },
        "MiniMaxM3SparseForConditionalGeneration has sparse attention",
    ),
    "captured, but of no kind we know": (
        {"architectures": ["Qwen4ExpForConditionalGeneration"]},
        "Qwen4ExpForConditionalGeneration is not known to attend in a way",
    ),
}
SERVED_TARGETS: dict[str, dict[str, Any]] = {
    "Llama": {"architectures": ["LlamaForCausalLM"]},
    "experts": {"architectures": ["Qwen3MoeForCausalLM"]},
    "Llama-4 without chunks": {"architectures": ["Llama4ForCausalLM"]},
}
TRANSFORMERS = "another implementation of the target"
TARGETS[TRANSFORMERS] = ({}, "SGLang's Qwen3ForCausalLM has no set_dflash_layers_to_capture")


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any]]:
    """Status and output of every launch, up to where a server would load weights."""
    changes = {name: changed for name, (changed, _) in TARGETS.items()} | SERVED_TARGETS
    cases = {
        name: {"flags": [*SERVER, "--json-model-override-args", json.dumps(changed)]}
        for name, changed in changes.items()
    }
    cases[TRANSFORMERS]["flags"] += ["--model-impl", "transformers"]
    return outcomes_of(cases)


@pytest.mark.parametrize("name", SERVED_TARGETS)
def test_served(outcomes: dict[str, dict[str, Any]], name: str) -> None:
    assert outcomes[name]["status"] == 0, outcomes[name]["output"][-3000:]
    assert STARTED in outcomes[name]["output"]


@pytest.mark.parametrize("name", TARGETS)
def test_refused_before_weights_are_read(outcomes: dict[str, dict[str, Any]], name: str) -> None:
    assert outcomes[name]["status"] == 2
    assert_refused(outcomes[name]["output"], TARGETS[name][1])
