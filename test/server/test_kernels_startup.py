"""When ``ddtree`` verifies: by default on CUDA, on request elsewhere; else one clear error."""

from __future__ import annotations

from typing import Any

import pytest

from server.asking import answers_of
from server.configurations import PAIR
from server.launch_cases import assert_refused, outcomes_of

pytestmark = pytest.mark.no_server

TARGET = ["--model-path", str(PAIR.target)]
DDTREE = ["--speculative-algorithm", "DDTREE"]
DDTREE += ["--speculative-draft-model-path", str(PAIR.drafter)]
ASKED = ["--decode-attention-backend", "ddtree"]
REFUSED = {
    "no interpreter": (
        [*DDTREE, *ASKED],
        "--decode-attention-backend ddtree can't verify trees here "
        "(triton: Triton does not run here): drop it",
    ),
    "for prefill": (
        [*DDTREE, "--attention-backend", "ddtree"],
        "attention backend 'ddtree' verifies trees and nothing else: name it with "
        "--decode-attention-backend",
    ),
    "without trees": (ASKED, "ddtree goes with --speculative-algorithm DDTREE only"),
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any]]:
    return outcomes_of({name: {"flags": [*TARGET, *case[0]]} for name, case in REFUSED.items()})


@pytest.mark.parametrize("name", REFUSED)
def test_refused(outcomes: dict[str, dict[str, Any]], name: str) -> None:
    output = outcomes[name]["output"]
    assert outcomes[name]["status"] == 2
    assert_refused(output, REFUSED[name][1])


# On a pretended card: settings that the user gave, the target, whether ddtree verifies, the error.
ON_CUDA: dict[str, tuple[dict[str, Any], dict[str, Any], bool, str]] = {
    "by default": ({}, {}, True, ""),
    "prefill elsewhere": ({"attention_backend": "flashinfer"}, {}, True, ""),
    "the mask, by name": ({"attention_backend": "triton"}, {}, False, ""),
    "the mask, by name for decoding": (
        {"attention_backend": "flashinfer", "decode_attention_backend": "triton"},
        {},
        False,
        "",
    ),
    "latent rows": ({"attention_backend": "flashinfer"}, {"mla": True}, True, ""),
    "sinks": ({}, {"architecture": "GptOssForCausalLM"}, False, ""),
    "sinks, asked for": (
        {"decode_attention_backend": "ddtree"},
        {"architecture": "GptOssForCausalLM"},
        False,
        "can't verify trees here (GptOssForCausalLM has attention sinks): drop it",
    ),
    "no kernel, nor a mask": (
        {"attention_backend": "flashinfer", "kv_cache_dtype": "fp4_e2m1"},
        {},
        False,
        "use --attention-backend triton (torch_tree without a GPU); ddtree can't stand in for it: "
        "a KV cache in fp4_e2m1",
    ),
    "wide heads": ({}, {"head_dim": 1024}, False, ""),
}
ASK = """
import json, sys
from types import SimpleNamespace
import sglang.srt.utils, torch
from sglang.srt.configs.model_config import AttentionArch
from sglang_ddtree.engine.attention import selection
from sglang_ddtree.engine.startup.server_checks import server_problems

sglang.srt.utils.is_cuda = lambda: True
blackwell = selection.Device((12, 0), triton=True, compiler=True)
selection.Device = SimpleNamespace(of=lambda device: blackwell)

class Settings(SimpleNamespace):
    def __getattr__(self, name):
        return None

def target(architecture="Qwen3ForCausalLM", mla=False, head_dim=128):
    return SimpleNamespace(
        attention_arch=AttentionArch.MLA if mla else AttentionArch.MHA,
        hf_config=SimpleNamespace(architectures=[architecture]),
        dtype=torch.bfloat16,
        num_attention_heads=32, get_num_kv_heads=lambda tp_size: 8 // tp_size,
        head_dim=head_dim, v_head_dim=head_dim, swa_head_dim=head_dim, swa_v_head_dim=head_dim,
        kv_lora_rank=512, qk_rope_head_dim=64,
    )

answers = {}
for name, (settings, model) in json.load(sys.stdin).items():
    raw = dict(settings)
    resolved = {"kv_cache_dtype": "auto", "tp_size": 2, "device": "cuda", **settings}
    resolved["attention_backend"] = settings.get("attention_backend", "triton")
    if resolved.get("decode_attention_backend") == "ddtree":
        resolved["decode_attention_backend"] = None
    cfg = Settings(
        _raw_input=raw, speculative_draft_model_path="drafter", pp_size=1, **resolved
    )
    answers[name] = [server_problems(cfg), *selection.verdict(target(**model), 32, cfg)]
json.dump(answers, sys.stdout)
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    return answers_of(ASK, {name: case[:2] for name, case in ON_CUDA.items()})


@pytest.mark.parametrize("name", ON_CUDA)
def test_on_cuda(answers: dict[str, Any], name: str) -> None:
    *_, verifies, error = ON_CUDA[name]
    before, verdict, problems = answers[name]
    # Whether flashinfer may stay depends on who verifies, unless a name settles that.
    assert bool(before) == (name == "the mask, by name for decoding")
    assert verdict is verifies
    assert len(problems) == (1 if error else 0)
    assert all(error in problem for problem in problems)
