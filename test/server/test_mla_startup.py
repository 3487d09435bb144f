"""Latent-attention targets at start-up: which are served, and on which attention backends."""

from __future__ import annotations

from typing import Any

import pytest

from server import mla_configs
from server.asking import answers_of
from server.launch_cases import assert_refused, outcomes_of
from server.launch_probe import STARTED
from server.mla_configs import DEEPSEEK_V3, GLM4_MOE_LITE, KIMI_K25, drafter_of

pytestmark = pytest.mark.no_server

KIMI_DRAFTER = drafter_of(KIMI_K25)
SERVED: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "DeepSeek-V3": (DEEPSEEK_V3, drafter_of(DEEPSEEK_V3), []),
    "Kimi K2.5": (KIMI_K25, KIMI_DRAFTER, []),
    "Kimi K2.5, wide tree on 8 ranks": (
        KIMI_K25,
        KIMI_DRAFTER,
        ["--tp-size", "8", "--speculative-ddtree-budget", "255", "--page-size", "64"],
    ),
    "Kimi K2.5 on triton": (KIMI_K25, KIMI_DRAFTER, ["--attention-backend", "triton"]),
    "GLM-4.7-Flash": (GLM4_MOE_LITE, drafter_of(GLM4_MOE_LITE), []),
}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], list[str], str]] = {
    "mask token beyond the vocabulary": (
        KIMI_K25,
        drafter_of(
            KIMI_K25, dflash_config={**KIMI_DRAFTER["dflash_config"], "mask_token_id": 163840}
        ),
        [],
        "mask token is 163840, the target's vocabulary has 163840 tokens",
    ),
    "drafter of DeepSeek-V3 for Kimi": (
        KIMI_K25,
        drafter_of(DEEPSEEK_V3),
        [],
        "the drafter's vocabulary has 129280 tokens, the target's 163840",
    ),
    "drafter for fewer layers": (
        KIMI_K25,
        drafter_of(KIMI_K25, num_target_layers=60),
        [],
        "target of 60 layers, this one has 61",
    ),
    "more ranks than the drafter's heads": (
        KIMI_K25,
        drafter_of(KIMI_K25, num_attention_heads=12),
        ["--tp-size", "8"],
        "the drafter's 12 heads and 8 KV heads can't be split over --tp-size 8",
    ),
}
# What each would do to a tree.
BACKENDS = {
    "flashinfer": "its MLA path plans verification as causal and drops the mask",
    "trtllm_mla": "its verify kernel takes no mask",
    "cutedsl_mla": "its verify kernel takes no mask",
    "flashmla": "its verify kernel takes no mask and is causal",
    "fa3": "its verification is causal but for EAGLE's cascade",
    "fa4": "its verification is causal but for EAGLE's cascade",
    "dsa": "it attends to keys that its indexer picked",
    "aiter": "",
    "torch_native": "",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Status and output of every launch, up to where a server would load weights."""
    cases = {}
    listed = {name: (*case, "") for name, case in SERVED.items()} | REFUSED
    for name, (target, drafter, flags, _) in listed.items():
        folder = tmp_path_factory.mktemp("model")
        paths = [
            *("--model-path", str(mla_configs.write(folder / "target", target))),
            "--speculative-draft-model-path",
            str(mla_configs.write(folder / "drafter", drafter)),
        ]
        cases[name] = {"flags": [*paths, "--speculative-algorithm", "DDTREE", *flags]}
    return outcomes_of(cases)


@pytest.mark.parametrize("name", SERVED)
def test_served(outcomes: dict[str, dict[str, Any]], name: str) -> None:
    assert outcomes[name]["status"] == 0, outcomes[name]["output"][-3000:]
    assert STARTED in outcomes[name]["output"]


@pytest.mark.parametrize("name", REFUSED)
def test_refused(outcomes: dict[str, dict[str, Any]], name: str) -> None:
    status, output = outcomes[name]["status"], outcomes[name]["output"]
    assert status == 2
    assert STARTED not in output
    assert_refused(output, REFUSED[name][3])


ARCHITECTURES = {
    "GlmMoeDsaForCausalLM": (
        {"index_topk": 2048},
        "attends to keys that an indexer picks (DSA), which does not know a tree",
    ),
    "DeepseekV32ForCausalLM": ({"index_topk": 2048}, "an indexer picks (DSA)"),
    "MiniCPM3ForCausalLM": ({}, "keeps a latent (MLA) cache, and its trees were not tried"),
    "KimiK3ForConditionalGeneration": ({}, "its trees were not tried; those of Deepseek"),
    "DeepseekV3ForCausalLM": ({}, ""),
    "KimiK25ForConditionalGeneration": ({}, ""),
}
# SGLang refuses some of these by itself where their GPU is not there, so the checks are asked
# directly; in a process of its own, because it imports SGLang.
ASK = """
import json, sys
from types import SimpleNamespace
from sglang.srt.configs.model_config import AttentionArch
from sglang_ddtree.engine.startup.server_checks import server_problems
from sglang_ddtree.engine.startup.mla import architecture_problem

class Settings(SimpleNamespace):
    def __getattr__(self, name):
        return None

def backend(name):
    return server_problems(
        Settings(speculative_draft_model_path="drafter", pp_size=1, attention_backend=name)
    )

def architecture(name, attributes, arch):
    config = SimpleNamespace(architectures=[name], **attributes)
    return architecture_problem(
        SimpleNamespace(attention_arch=arch, hf_config=config, hf_text_config=config)
    )

asked = json.load(sys.stdin)
answers = {name: backend(name) for name in asked["backends"]}
for name, (attributes, _) in asked["architectures"].items():
    answers[name] = architecture(name, attributes, AttentionArch.MLA)
answers["GQA"] = architecture("Qwen3ForCausalLM", {}, AttentionArch.MHA)
json.dump(answers, sys.stdout)
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    questions = {"backends": [*BACKENDS, "triton", "torch_tree"], "architectures": ARCHITECTURES}
    return answers_of(ASK, questions)


@pytest.mark.parametrize("backend", BACKENDS)
def test_causal_backends_are_refused_with_the_reason(answers: dict[str, Any], backend: str) -> None:
    (problem,) = answers[backend]
    assert problem.startswith(f"attention backend '{backend}' would verify a tree as a chain")
    assert BACKENDS[backend] in problem
    assert "use --attention-backend triton" in problem


def test_tree_backends_are_not_refused(answers: dict[str, Any]) -> None:
    assert answers["triton"] == answers["torch_tree"] == []


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_table_of_architectures(answers: dict[str, Any], name: str) -> None:
    reason = ARCHITECTURES[name][1]
    if not reason:
        assert answers[name] is None
    else:
        assert answers[name].startswith(name)
        assert reason in answers[name]
    assert answers["GQA"] is None
