"""Many different requests on a KV pool that holds two: nothing is lost, nothing is changed."""

from __future__ import annotations

import random
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from common.server import Server

from server.client import events, is_idle, load, wait_until
from server.configurations import CONTEXT_LENGTH
from server.oracle import Oracle
from server.reference import ReferenceTarget

pytestmark = pytest.mark.parametrize("tree", ["cramped"], indirect=True)
REQUESTS = 200
CLIENTS = 8


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


def one_request(server: Server, oracle: Oracle, text: str, chance: random.Random) -> int:
    """Send one random request, check what can be checked, return how often it was retracted."""
    greedy = chance.random() < 0.5
    length = chance.randint(1, 120)
    params: dict[str, Any] = {"temperature": 0, "max_new_tokens": length, "ignore_eos": True}
    if not greedy:
        params |= {"temperature": chance.uniform(0.3, 1.3), "top_p": chance.choice([1.0, 0.9])}
        params |= {"top_k": chance.choice([-1, 20]), "sampling_seed": chance.randint(0, 9999)}
    if chance.random() < 0.15:
        params["ignore_eos"] = False
    body = {"text": text, "sampling_params": params, "stream": chance.random() < 0.5}
    leave_after = chance.randint(1, 6) if body["stream"] and chance.random() < 0.4 else None
    answer: dict[str, Any] = {}
    with server.post("/generate", body, stream=True) as response:
        assert response.status_code == 200
        if not body["stream"]:
            answer = response.json()
        else:
            for count, event in enumerate(events(response)):
                answer = event
                if count == leave_after:
                    return 0  # closes the connection
    if greedy and params["ignore_eos"]:
        oracle.check_tokens(text, answer["output_ids"], oracle.tokens(text, length))
    return answer["meta_info"]["num_retractions"]


def test_soak(tree: Server, oracle: Oracle, prompts: list[str]) -> None:
    texts = prompts[:3] + prompts[4:]
    for text in texts:
        oracle.tokens(text)
    first = tree.generate_all(texts, concurrency=2, max_new_tokens=64, ignore_eos=True)

    def client(number: int) -> int:
        chance = random.Random(number)
        return one_request(tree, oracle, chance.choice(texts), chance)

    with ThreadPoolExecutor(CLIENTS) as clients:
        retractions = sum(clients.map(client, range(REQUESTS)))
    assert retractions > 0

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
