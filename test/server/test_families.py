"""Every family of targets with the settings of a published config, at tiny sizes.

Plain decoding against transformers, and the tree against both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from server import family_engines
from server.configurations import STRICT
from server.family_configs import FAMILIES, POSITIONS, VOCAB
from server.random_model import write_drafter, write_target
from server.reference import NEAR_TIE

LENGTH, BUDGET = 24, 32
# Beyond the window and the positions that rope is scaled from.
PROMPT_LENGTHS = (40, 70, 90)
CAPTURED = (0, 1, 2)


def _prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, VOCAB - 1, (n,), generator=generator).tolist() for n in PROMPT_LENGTHS]


def _jobs(family: str, folder: Path) -> list[dict[str, Any]]:
    target = write_target(FAMILIES[family], folder / family / "target")
    drafter = write_drafter(FAMILIES[family], CAPTURED, folder / family / "drafter")
    settings = {
        "model_path": str(target),
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "max_total_tokens": 4096,
        "context_length": POSITIONS,
        "mem_fraction_static": 0.2,
        "random_seed": 1,
    }
    tree = {
        "speculative_algorithm": "DDTREE",
        "speculative_draft_model_path": str(drafter),
        "speculative_num_draft_tokens": BUDGET,
    }
    shared = {"prompts": _prompts(), "length": LENGTH, "timeout_s": 120}
    return [
        {**shared, "name": f"{family}-plain", "logprobs": True, "settings": settings},
        {**shared, "name": f"{family}-tree", "logprobs": False, "settings": {**settings, **tree}},
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The answers of all families: engines that one process has started."""
    folder = tmp_path_factory.mktemp("families")
    jobs = [job for family in FAMILIES for job in _jobs(family, folder)]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, family_engines.__file__, str(folder)]
    env = {**os.environ, **STRICT}
    subprocess.run(command, check=True, timeout=900, env=env)
    return folder


def _answers(folder: Path, name: str) -> list[dict[str, Any]]:
    file = folder / f"{name}.json"
    assert file.exists(), (folder / f"{name}.log").read_text()[-4000:]
    return json.loads(file.read_text())


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_tree_and_plain_are_what_transformers_says(folder: Path, family: str) -> None:
    plain, tree = (_answers(folder, f"{family}-{kind}") for kind in ("plain", "tree"))
    model = AutoModelForCausalLM.from_pretrained(folder / family / "target", dtype=torch.float32)
    for prompt, one, other in zip(_prompts(), plain, tree, strict=True):
        for answer in (one, other):
            tokens = answer["output_ids"]
            assert len(tokens) == LENGTH
            logits = model.eval()(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
            chosen = logits[range(LENGTH), tokens]
            assert (logits.max(-1).values - chosen).max() < NEAR_TIE
            if answer is one:
                said = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
                expected = logits.log_softmax(-1)[range(LENGTH), tokens]
                torch.testing.assert_close(torch.tensor(said), expected, rtol=1e-3, atol=1e-3)
        assert one["output_ids"] == other["output_ids"]
    # Of a random drafter's guesses a wide tree holds some that are right.
    assert max(answer["meta_info"]["spec_accept_length"] for answer in tree) > 1
