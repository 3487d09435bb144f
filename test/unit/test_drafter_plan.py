"""The sums of ``drafter plan``, and the chat prompts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_ddtree import cli
from sglang_ddtree.cluster.facts.model_facts import KIMI_K2
from sglang_ddtree.drafter.evaluation.arithmetic import Job, calculate

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from make_pair import chat_prompts

JOB = Job(
    samples=240_000,
    prompt=1096,
    answer=3000,
    epochs=1,
    anchors=512,
    gpus=8,
    gpu_memory=int(102.6e9),
    disk=int(4e12),
    generate_rate=1000,
    capture_rate=5000,
    flops=150e12,
)


def test_kimi_fills_the_box() -> None:
    found = calculate(KIMI_K2, JOB)
    assert found.feature_bytes_a_token == 6 * 7168 * 2
    assert found.feature_bytes == pytest.approx(84.6e12, rel=0.01)
    assert found.slices == 22
    assert not found.fits_together
    assert calculate(KIMI_K2, replace(JOB, gpus=16)).fits_together
    assert found.generate_s == pytest.approx(720e6 / 1000)


def test_training_time_is_proportional_to_its_work() -> None:
    once = calculate(KIMI_K2, JOB).train_s
    assert calculate(KIMI_K2, replace(JOB, epochs=3)).train_s == pytest.approx(3 * once)
    assert calculate(KIMI_K2, replace(JOB, gpus=16)).train_s == pytest.approx(once / 2)
    # At least six operations for each of 3.3e9 parameters less fc, and each row of each block.
    assert once > 240_000 * 512 * 16 * 6 * 2.9e9 / (8 * 150e12)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["drafter", "plan", "--model", "kimi-k2.6"]) == 0
    output = capsys.readouterr().out
    assert "86.0 KB a token" in output
    assert "time-slice" in output
    assert "Published figures of others" in output
    assert cli.main(["drafter", "plan", "--model", "nonsense"]) == 1
    assert "kimi-k2.6" in capsys.readouterr().err
    assert cli.main(["drafter", "plan", "--model", "kimi-k2.6", "--gpus", "0"]) == 1


def test_chat_prompts_are_held_out_by_topic() -> None:
    trained = chat_prompts.prompts(500, 0, held_out=False)
    held = chat_prompts.prompts(60, 0, held_out=True)
    texts = {str(p["messages"]) for p in trained}
    assert len(texts) == 500
    assert trained == chat_prompts.prompts(500, 0, held_out=False)
    topics = [t for t in chat_prompts.THINGS if chat_prompts.is_held_out(t)]
    assert 5 < len(topics) < len(chat_prompts.THINGS) / 4
    # Questions begin or end in the same words, whatever they are about.
    assert all(any(topic in str(p["messages"]) for topic in topics) for p in held)
