"""Sampled requests with seeds: the draws of a position do not depend on how it is reached."""

from __future__ import annotations

from typing import Any

import pytest
from common.server import Server

from server.oracle import Oracle

SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.2, "top_p": 0.9},
    {"temperature": 0.9, "top_k": 30, "top_p": 0.8},
]


@pytest.mark.parametrize("tree", ["narrow", "cramped"], indirect=True)
def test_seeded_draws_equal_plain_decoding(
    tree: Server, oracle: Oracle, prompts: list[str]
) -> None:
    """SGLang draws a token from its distribution, the seed and the position: nothing else.

    So a tree server must give the very tokens of plain decoding, whatever its drafts were.
    """
    same = total = 0
    for number, setting in enumerate(SETTINGS):
        # One setting a batch: next to a filtered request, SGLang hashes ranks instead of token ids
        # for all, and so draws other tokens (srt/layers/sampler.py:821@0.5.23).
        common = {**setting, "max_new_tokens": 48, "ignore_eos": True}
        params = [{**common, "sampling_seed": 10 * number + i} for i in range(3)]
        body = {"text": prompts[:3], "sampling_params": params}
        answers: Any = tree.post("/generate", body).json()
        expected: Any = oracle.post("/generate", body)
        for answer, plain in zip(answers, expected, strict=True):
            same += answer["output_ids"] == plain["output_ids"]
            total += 1
    # Rounding moves the edges of a draw by about 1e-7: one answer in thousands may part.
    assert same >= total - 1


@pytest.mark.parametrize("tree", ["narrow", "cramped"], indirect=True)
def test_same_seed_same_answer(tree: Server, prompts: list[str]) -> None:
    sampling = {"temperature": 1.3, "sampling_seed": 11, "max_new_tokens": 40, "ignore_eos": True}
    first = tree.generate(prompts[4], **sampling)["output_ids"]
    again = tree.generate_all([prompts[4]] * 3, concurrency=3, **sampling)
    other = tree.generate(prompts[4], **{**sampling, "sampling_seed": 12})["output_ids"]
    assert [answer["output_ids"] for answer in again] == [first] * 3
    assert other != first
    # A chain's sampler is not there on a CPU; a tree needs none.
    assert "falling back to greedy" not in tree.log()
