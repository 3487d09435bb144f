"""Servers that must not start, each with one message that says what to change."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from common.pairs import Pair
from safetensors.torch import load_file, save_file

from server.launch_cases import assert_refused, outcomes_of
from server.launch_probe import STARTED

pytestmark = pytest.mark.no_server

PAIR = Pair("tiny-dense")
TARGET = ["--model-path", str(PAIR.target), "--dtype", "float32"]
HYBRID = [
    *("--model-path", str(Pair("tiny-hybrid").target), "--dtype", "float32"),
    *("--speculative-draft-model-path", str(Pair("tiny-hybrid").drafter)),
]
DDTREE = ["--speculative-algorithm", "DDTREE"]
FOLDER = "<drafter>"  # stands for the folder of a case's own drafter
DRAFTER = ["--speculative-draft-model-path", str(PAIR.drafter)]

Tensors = dict[str, torch.Tensor]


def configured(**changes: Any) -> Callable[[Path], None]:
    """Change the drafter's config; ``dflash`` changes its nested DFlash settings."""

    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["dflash_config"].update(changes.pop("dflash", {}))
        config.update(changes)
        (folder / "config.json").write_text(json.dumps(config))

    return change


def weights(edit: Callable[[Tensors], object]) -> Callable[[Path], None]:
    """Change the drafter's tensors in place."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors")

    return change


def add(name: str) -> Callable[[Path], None]:
    return weights(lambda tensors: tensors.update({name: torch.zeros(4, 4)}))


SERVER_SETTINGS: dict[str, tuple[list[str], str]] = {
    "no drafter": ([], "--speculative-draft-model-path is missing"),
    "drafter that is not there": (
        ["--speculative-draft-model-path", "/no/such/drafter"],
        "--speculative-draft-model-path: there is no /no/such/drafter",
    ),
    "budget 0": ([*DRAFTER, "--speculative-ddtree-budget", "0"], "between 1 and 255, got 0"),
    "budget 256": ([*DRAFTER, "--speculative-ddtree-budget", "256"], "between 1 and 255, got 256"),
    "topk 0": ([*DRAFTER, "--speculative-ddtree-topk", "0"], "between 1 and 64, got 0"),
    "topk 65": ([*DRAFTER, "--speculative-ddtree-topk", "65"], "between 1 and 64, got 65"),
    "released memory": (
        [*DRAFTER, "--enable-memory-saver"],
        "loses the drafter when memory is released: add --enable-draft-weights-cpu-backup",
    ),
    "two budgets": (
        [*DRAFTER, "--speculative-ddtree-budget", "31", "--speculative-num-draft-tokens", "33"],
        "budget is 31 but --speculative-num-draft-tokens minus 1 is 32",
    ),
    "two topks": (
        [*DRAFTER, "--speculative-ddtree-topk", "4", "--speculative-eagle-topk", "8"],
        "topk is 4 but --speculative-eagle-topk is 8",
    ),
    "attention backend": (
        [*DRAFTER, "--attention-backend", "torch_native"],
        "attention backend 'torch_native' would verify a tree as a chain",
    ),
    "prefill attention backend": (
        [*DRAFTER, "--prefill-attention-backend", "torch_native"],
        "attention backend 'torch_native' would verify a tree as a chain",
    ),
    "draft attention backend": (
        [*DRAFTER, "--speculative-draft-attention-backend", "flashinfer"],
        "attention backend 'flashinfer' would verify a tree as a chain",
    ),
    "pipeline parallelism": ([*DRAFTER, "--pp-size", "2"], "set --pp-size 1 (got 2)"),
    "DP attention": (
        [*DRAFTER, "--tp-size", "2", "--dp-size", "2", "--enable-dp-attention"],
        "DP attention is not supported",
    ),
    "disaggregated prefill": (
        [*DRAFTER, "--disaggregation-mode", "prefill"],
        "disaggregation is not supported",
    ),
    "disaggregated decode": (
        [*DRAFTER, "--disaggregation-mode", "decode"],
        "disaggregation is not supported",
    ),
    "LoRA": (
        [*DRAFTER, "--enable-lora", "--max-lora-rank", "8", "--lora-target-modules", "q_proj"],
        "LoRA is not supported",
    ),
    "rejection sampling": (
        [*DRAFTER, "--speculative-use-rejection-sampling"],
        "--speculative-use-rejection-sampling is a chain's sampler",
    ),
    "steps": (
        [*DRAFTER, "--speculative-num-steps", "3"],
        "--speculative-num-steps has no meaning for a block drafter",
    ),
    "block size": (
        [*DRAFTER, "--speculative-dflash-block-size", "8"],
        "--speculative-dflash-block-size is 8, but the drafter was trained for blocks of 16",
    ),
    "mixed chunks": ([*DRAFTER, "--enable-mixed-chunk"], "--enable-mixed-chunk is not supported"),
    "draft window": (
        [*DRAFTER, "--speculative-draft-window-size", "64"],
        "--speculative-draft-window-size is not supported",
    ),
    "hierarchical cache": (
        [*DRAFTER, "--enable-hierarchical-cache"],
        "--enable-hierarchical-cache copies KV rows with CUDA kernels: drop it without a GPU",
    ),
    "pool below one request": (
        [*DRAFTER, "--max-total-tokens", "32"],
        "the KV pool of 32 tokens can't hold one request, which takes 33",
    ),
    "pool below one request, in pages": (
        [*DRAFTER, "--max-total-tokens", "47", "--page-size", "16"],
        "the KV pool of 47 tokens can't hold one request, which takes 48",
    ),
    "pool below one request of a wide tree": (
        [*DRAFTER, "--max-total-tokens", "512", "--speculative-ddtree-budget", "255"],
        "the KV pool of 512 tokens can't hold one request, which takes 513",
    ),
}

DRAFTERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "hidden size": (configured(hidden_size=256), "hidden size is 256, the target's 192"),
    "vocabulary": (configured(vocab_size=4096), "vocabulary"),
    "mask token beyond the vocabulary": (
        configured(dflash={"mask_token_id": 2048}),
        "mask token is 2048, the target's vocabulary has 2048 tokens",
    ),
    "target layer ids": (
        configured(dflash={"target_layer_ids": [0, 1, 4]}),
        "reads target layers [4], the target has layers 0..3",
    ),
    "target depth": (configured(num_target_layers=36), "target of 36 layers, this one has 4"),
    "contradictory layers": (
        configured(layer_types=["full_attention"]),
        "SGLang can't read the config.json of the drafter",
    ),
    "layers of their own sizes": (
        configured(per_layer_config={"0": {"head_dim": 32}}),
        "'head_dim' is a per-layer attribute",
    ),
    "block of one": (configured(block_size=1), "block size is 1, it must be at least 2"),
    "missing tensor": (
        weights(lambda tensors: tensors.pop("layers.1.mlp.up_proj.weight")),
        "lacks layers.1.mlp.up_proj.weight",
    ),
    "unknown tensor": (add("layers.0.self_attn.gate.weight"), "layers.0.self_attn.gate.weight"),
    "misshapen tensor": (
        weights(lambda tensors: tensors.update({"norm.weight": torch.ones(64)})),
        "norm.weight is [64], expected [192]",
    ),
    "Domino by its config": (
        configured(
            dflash={
                "projector_type": "domino",
                "gru_hidden_dim": 8,
                "emb_dim": 8,
                "shift_label": True,
                "pure_draft_prefix_len": 1,
            }
        ),
        "Domino head",
    ),
    "Domino by its tensors": (add("prefix_gru.weight_ih_l0"), "Domino head"),
    "LiLiCorr": (add("lilicorr.token_proj.weight"), "LiLiCorr head"),
    "DFlash2 selector by its config": (
        configured(dflash={"selector_rank": 8, "selector_top_k": 4}),
        "DFlash2 selector head",
    ),
    "DFlash2 selector by its tensors": (
        add("candidate_selector.proj.weight"),
        "DFlash2 selector head",
    ),
    "DFlash2 convolution": (
        configured(dflash={"conv_kernel_size": 2, "conv_group_size": 4}),
        "grouped-convolution head",
    ),
}

SERVED: dict[str, list[str]] = {
    "defaults": DRAFTER,
    "largest tree": [
        *[*DRAFTER, "--speculative-ddtree-budget", "255", "--speculative-ddtree-topk", "64"],
        "--no-speculative-ddtree-spine",
    ],
    "SGLang's spellings": [
        *[*DRAFTER, "--speculative-num-draft-tokens", "32", "--speculative-eagle-topk", "4"],
    ],
    "triton backend": [*DRAFTER, "--attention-backend", "triton"],
    "smallest pool": [*DRAFTER, "--max-total-tokens", "33"],
    "drafter of its own folder": ["--speculative-draft-model-path", FOLDER],
}

OTHER_SGLANG = "0.5.99"
# SGLang's own check of a setting.
NO_BUFFER = "states without a buffer, in pages"
NO_BUFFER_FLAGS = ["--mamba-radix-cache-strategy", "no_buffer"]


def case(flags: Iterable[str], folder: Path, **more: str) -> dict[str, Any]:
    named = [str(folder) if flag == FOLDER else flag for flag in flags]
    return {"flags": [*TARGET, *DDTREE, *named], **more}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Status and output of every launch."""
    intact = tmp_path_factory.mktemp("intact") / "drafter"
    shutil.copytree(PAIR.drafter, intact)
    cases = {name: case(flags, intact) for name, (flags, _) in SERVER_SETTINGS.items()}
    cases |= {name: case(flags, intact) for name, flags in SERVED.items()}
    for name, (change, _) in DRAFTERS.items():
        folder = tmp_path_factory.mktemp("changed") / "drafter"
        shutil.copytree(PAIR.drafter, folder)
        change(folder)
        cases[name] = case(SERVED["drafter of its own folder"], folder)
    cases[NO_BUFFER] = {"flags": [*HYBRID, *DDTREE, "--page-size", "16", *NO_BUFFER_FLAGS]}
    cases[OTHER_SGLANG] = case(DRAFTER, intact, sglang_version=OTHER_SGLANG)
    return outcomes_of(cases)


@pytest.mark.parametrize("name", SERVED)
def test_served(outcomes: dict[str, dict[str, Any]], name: str) -> None:
    """The refusals below are not refusals of everything."""
    assert outcomes[name]["status"] == 0, outcomes[name]["output"]
    assert STARTED in outcomes[name]["output"]


@pytest.mark.parametrize(
    ("name", "message"),
    [(name, message) for name, (_, message) in {**SERVER_SETTINGS, **DRAFTERS}.items()],
)
def test_refused(outcomes: dict[str, dict[str, Any]], name: str, message: str) -> None:
    status, output = outcomes[name]["status"], outcomes[name]["output"]
    assert status == 2
    assert STARTED not in output
    assert_refused(output, message)


def test_what_sglang_refuses_is_said_alone(outcomes: dict[str, dict[str, Any]]) -> None:
    assert outcomes[NO_BUFFER]["status"] == 2
    assert_refused(outcomes[NO_BUFFER]["output"], "no_buffer only supports page_size=1")


def test_other_sglang_is_refused(outcomes: dict[str, dict[str, Any]]) -> None:
    status, output = outcomes[OTHER_SGLANG]["status"], outcomes[OTHER_SGLANG]["output"]
    assert status == 2
    assert STARTED not in output
    assert f"sglang {OTHER_SGLANG} is installed, this release is for 0.5.23" in output
    assert "pip install sglang==0.5.23" in output
