"""Many different requests on a KV pool that holds two: nothing is lost, nothing is changed."""

from __future__ import annotations

import re

import pytest
from common.server import Server
from soaking.mix import WEIGHTS, Mix
from soaking.oracle import Oracle as Plain
from soaking.report import render
from soaking.run import Soak
from soaking.state import State

from server.client import is_idle, load
from server.configurations import CONTEXT_LENGTH, PAIR
from server.oracle import Oracle
from server.reference import ReferenceTarget
from waiting import wait_until

pytestmark = pytest.mark.parametrize("tree", ["cramped"], indirect=True)
REQUESTS, ROUND, CLIENTS = 300, 100, 8
SEED = 15


def chunked_prefills(server: Server) -> int:
    """Prefill batches of exactly one chunk in the log."""
    return len(re.findall(r"Prefill batch.*#new-token: 64,", server.log()))


def test_long_prompts_come_in_chunks(
    tree: Server, oracle: Oracle, reference: ReferenceTarget, long_prompt: str
) -> None:
    tree.flush_cache()
    before = chunked_prefills(tree)
    chunks = len(reference.encode(long_prompt)) // 64
    assert chunks >= 3
    answer = tree.generate(long_prompt, max_new_tokens=64, ignore_eos=True)
    oracle.check_tokens(long_prompt, answer["output_ids"], oracle.tokens(long_prompt, 64))
    assert chunked_prefills(tree) == before + chunks


def test_requests_that_are_retracted(tree: Server, oracle: Oracle, prompts: list[str]) -> None:
    """Their tokens are recomputed in a prefill, and decoding goes on as if nothing had been."""
    # Short ones: the scheduler lets in what their tokens need, not what their trees reserve.
    texts = 8 * prompts[:3]
    tree.flush_cache()
    params = {"temperature": 0, "max_new_tokens": 64, "ignore_eos": True}
    answers = tree.post("/generate", {"text": texts, "sampling_params": params}).json()
    for text, answer in zip(texts, answers, strict=True):
        oracle.check_tokens(text, answer["output_ids"], oracle.tokens(text, 64))
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 0
    assert wait_until(lambda: is_idle(tree)), load(tree)


def test_soak(tree: Server, oracle: Oracle, prompts: list[str]) -> None:
    texts = prompts[:3] + prompts[4:]
    for text in texts:
        oracle.tokens(text)
    first = tree.generate_all(texts, concurrency=2, max_new_tokens=64, ignore_eos=True)

    state = State({"pair": PAIR.name})
    mix = Mix(PAIR, seed=SEED, without=())
    soak = Soak(mix, Plain(), state, CLIENTS, every=2, is_alive=tree.is_alive)
    state.lives.append([])
    for _ in range(0, REQUESTS, ROUND):
        soak.round(tree.url, oracle.plain.url, tree.pid, ROUND)
    soak.check_life()
    report = render(state)
    assert not state.faults, report
    assert set(state.kinds) == set(WEIGHTS), report
    assert sum(state.kinds.values()) == REQUESTS
    assert state.counts["retractions"] > 0, report
    assert state.counts["equal"] > REQUESTS // 10, report
    assert state.counts["near tie"] <= 2, report

    # SGLang checks free + cached == total whenever it is idle, and would have stopped.
    assert wait_until(lambda: is_idle(tree)), load(tree)
    assert "leak" not in tree.log()
    last = tree.generate_all(texts, concurrency=2, max_new_tokens=64, ignore_eos=True)
    for text, before, after in zip(texts, first, last, strict=True):
        oracle.check_tokens(text, after["output_ids"], before["output_ids"])
    # The whole pool can still be had: one request of the full context, and the cache emptied.
    tree.flush_cache()
    whole = tree.generate(texts[0], max_new_tokens=CONTEXT_LENGTH - 60, ignore_eos=True)
    assert whole["meta_info"]["completion_tokens"] == CONTEXT_LENGTH - 60
    tree.flush_cache()
    assert wait_until(lambda: is_idle(tree)), load(tree)
