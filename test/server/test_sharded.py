"""Two tensor-parallel ranks over gloo."""

from __future__ import annotations

import pytest
from common.server import Server

from server.client import is_idle
from server.oracle import Oracle
from waiting import wait_until

pytestmark = pytest.mark.parametrize("tree", ["sharded"], indirect=True)


def test_greedy_equals_one_rank(tree: Server, oracle: Oracle, prompts: list[str]) -> None:
    answers = tree.generate_all(prompts[:6], concurrency=3, max_new_tokens=64, ignore_eos=True)
    for text, answer in zip(prompts, answers, strict=False):
        oracle.check_tokens(text, answer["output_ids"], oracle.tokens(text, 64))
    lengths = [answer["meta_info"]["spec_accept_length"] for answer in answers]
    assert max(lengths) > 2


def test_sampled_ranks_stay_together(tree: Server, prompts: list[str]) -> None:
    """Ranks that disagreed about a draw would wait for each other for ever."""
    answers = tree.generate_all(
        prompts[:6], concurrency=6, temperature=1.0, max_new_tokens=64, ignore_eos=True
    )
    assert [answer["meta_info"]["completion_tokens"] for answer in answers] == [64] * 6
    assert wait_until(lambda: is_idle(tree))
