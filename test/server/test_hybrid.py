"""A target with recurrent (GDN) layers: trees, prefix cache, retraction, and the leak itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from common import plugins
from common.equality import accept_length
from common.pairs import Pair
from common.server import Server, tree_flags

from server.client import is_idle, load, stream
from server.configurations import CONTEXT_LENGTH, PAGED
from server.oracle import Oracle
from server.pair_server import (
    check_against_transformers,
    continue_from,
    plain_oracle,
    server_of,
)
from sglang_ddtree.cluster.facts.config_facts import read_folder
from waiting import wait_until

PAIR = Pair("tiny-hybrid")

# States of the prefix cache are kept at multiples of this many tokens where decoding takes any.
INTERVAL = 64
TRACKED = (*PAGED, "--mamba-track-interval", str(INTERVAL))
TREES = {
    # As narrow as the drafter's block: one path, the cache keeps whole answers.
    "chain": (PAIR.block_size - 1, ()),
    "wide": (63, ()),
    # Pages and checkpoints during prefill and decoding.
    "paged": (63, TRACKED),
    # Prompts in chunks, and a pool that holds two requests.
    "cramped": (31, (*TRACKED, "--chunked-prefill-size", "64", "--max-total-tokens", "1024")),
}
GB = 1 << 30  # SGLang's
FREE = {"max_new_tokens": 96, "ignore_eos": True}


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with plain_oracle(PAIR) as oracle:
        yield oracle


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [record["prompt"] for record in PAIR.prompts(8)]


@pytest.fixture(scope="module", params=TREES)
def tree(request: pytest.FixtureRequest) -> Iterator[Server]:
    budget, flags = TREES[request.param]
    with server_of(PAIR, *tree_flags(PAIR, budget), *flags) as server:
        yield server
        assert server.is_alive(), server.log()[-6000:]


def keeps_whole_answers(server: Server) -> bool:
    """Strategy ``no_buffer``: the cache takes a finished request's own state, and no other."""
    return server.info()["page_size"] == 1


def keeps_prompts(server: Server) -> bool:
    """Strategy ``extra_buffer``, and chunks long enough for a state within a prompt."""
    info = server.info()
    return info["page_size"] > 1 and info["chunked_prefill_size"] > INTERVAL


def test_plain_decoding_agrees_with_transformers(oracle: Oracle, texts: list[str]) -> None:
    check_against_transformers(oracle, texts)


def test_plain_decoding_from_a_warm_prefix(oracle: Oracle, texts: list[str]) -> None:
    """The CPU platform's own checkpoints, in prefill and in decoding, without any speculation."""
    with server_of(PAIR, *TRACKED) as server:
        for text in texts[:3]:
            prompt, expected = oracle.reference.encode(text), oracle.tokens(text, 128)
            server.generate(text, max_new_tokens=100, ignore_eos=True)
            ids = [*prompt, *expected[:110]]
            got, cached = continue_from(server, ids, 18)
            oracle.check_tokens(text, [*expected[:110], *got], expected)
            # Of an answer the last checkpoint stays; the last token never went through the layers.
            assert cached == (len(prompt) + 99) // INTERVAL * INTERVAL


def test_no_snapshots_are_allocated(tree: Server) -> None:
    log = tree.log()
    assert "intermediate_ssm_state_cache" not in log
    found = re.search(r"stashed in ([\d.]+) MB, a state after every node would take ([\d.]+)", log)
    assert found is not None
    stash, snapshots = map(float, found.groups())
    assert 0 < stash < snapshots


def test_cold_and_warm_prefix(tree: Server, oracle: Oracle, texts: list[str]) -> None:
    tree.flush_cache()
    for warm in (False, True):
        answers = tree.generate_all(texts, concurrency=4, **FREE)
        for text, answer in zip(texts, answers, strict=True):
            oracle.check_tokens(text, answer["output_ids"], oracle.tokens(text, 96))
        if warm:
            lengths = [answer["meta_info"]["prompt_tokens"] for answer in answers]
            cached = [answer["meta_info"]["cached_tokens"] for answer in answers]
            assert any(cached) == (max(lengths) > INTERVAL and keeps_prompts(tree))


def test_answers_become_prefixes(tree: Server, oracle: Oracle, texts: list[str]) -> None:
    """A state that the cache keeps of an answer is the state of exactly the tokens it names."""
    tree.flush_cache()
    reused = 0
    for text in texts:
        for length in (40, 80, 128):
            tree.generate(text, max_new_tokens=length, ignore_eos=True)
            expected = oracle.tokens(text, length + 32)
            ids = [*oracle.reference.encode(text), *expected[:length]]
            got, cached = continue_from(tree, ids, 32)
            oracle.check_tokens(text, [*expected[:length], *got], expected)
            reused += cached > len(oracle.reference.encode(text))
            if not keeps_whole_answers(tree):
                assert cached % INTERVAL == 0
    assert reused > 0


def test_conversation(tree: Server, oracle: Oracle, texts: list[str]) -> None:
    """Every turn continues the one before it, answer included."""
    messages: list[dict[str, str]] = []
    for turn in range(3):
        messages.append({"role": "user", "content": f"{turn}: {texts[turn][:60]}"})
        body = {"model": "x", "messages": messages, "temperature": 0, "max_tokens": 48}
        answer = tree.post("/v1/chat/completions", body).json()["choices"][0]["message"]
        expected = oracle.post("/v1/chat/completions", body)["choices"][0]["message"]
        assert answer["content"] == expected["content"]
        messages.append({"role": "assistant", "content": answer["content"]})


def test_many_clients_of_different_lengths(tree: Server, oracle: Oracle, texts: list[str]) -> None:
    many = [texts[i % len(texts)] for i in range(16)]
    params = [
        {"temperature": 0, "max_new_tokens": 5 + 7 * i, "ignore_eos": True}
        if i % 3
        else {"temperature": 0.8, "top_k": 20, "max_new_tokens": 40 - i, "ignore_eos": True}
        for i in range(16)
    ]
    answers = tree.post("/generate", {"text": many, "sampling_params": params}).json()
    for text, wanted, answer in zip(many, params, answers, strict=True):
        assert answer["meta_info"]["completion_tokens"] == wanted["max_new_tokens"]
        if wanted["temperature"] == 0:
            expected = oracle.tokens(text, wanted["max_new_tokens"])
            oracle.check_tokens(text, answer["output_ids"], expected)


def test_requests_that_leave(tree: Server, oracle: Oracle, texts: list[str]) -> None:
    """A slot that a client left behind is no one's state any more."""
    for text in texts[:4]:
        body = {"text": text, "stream": True, "sampling_params": {"max_new_tokens": 200}}
        with requests.post(tree.url + "/generate", json=body, stream=True, timeout=60) as answer:
            next(answer.iter_lines())
    assert wait_until(lambda: is_idle(tree)), load(tree)
    for text in texts[:4]:
        oracle.check_tokens(
            text, tree.generate(text, **FREE)["output_ids"], oracle.tokens(text, 96)
        )


def test_retraction(tree: Server, oracle: Oracle, texts: list[str], request: Any) -> None:
    """Tokens of retracted requests are computed again, from a state of zeros or of the cache."""
    if "cramped" not in request.node.callspec.id:
        pytest.skip("its pool holds all requests")
    short = sorted(texts, key=len)[:3]
    params = {"temperature": 0, "max_new_tokens": 96, "ignore_eos": True}
    answers = tree.post("/generate", {"text": 8 * short, "sampling_params": params}).json()
    for text, answer in zip(8 * short, answers, strict=True):
        oracle.check_tokens(text, answer["output_ids"], oracle.tokens(text, 96))
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 0
    assert wait_until(lambda: is_idle(tree)), load(tree)


def test_to_the_end_of_the_context(tree: Server, oracle: Oracle, texts: list[str]) -> None:
    text = min(texts, key=len)
    count = CONTEXT_LENGTH - len(tree.tokenize(text)) - 2
    got = tree.generate(text, max_new_tokens=count, ignore_eos=True)["output_ids"]
    oracle.check_tokens(text, got, oracle.tokens(text, count))


def test_streams_end_as_answers_do(tree: Server, oracle: Oracle, texts: list[str]) -> None:
    last = stream(tree, texts[0], max_new_tokens=64, ignore_eos=True)[-1]
    oracle.check_tokens(texts[0], last["output_ids"], oracle.tokens(texts[0], 64))


def test_memory_is_what_the_plan_says() -> None:
    """``sglang-ddtree plan`` against what a server in 16 bits allocates."""
    recurrent = read_folder(PAIR.target).recurrent
    assert recurrent is not None
    budget = 63
    flags = ("--dtype", "bfloat16", "--max-mamba-cache-size", "8192")
    with server_of(PAIR, *tree_flags(PAIR, budget), *flags) as server:
        log = server.log()
    found = re.search(
        r"up to (\d+) requests at once; trees of (\d+) nodes are stashed in ([\d.]+) MB, a state "
        r"after every node would take ([\d.]+) MB",
        log,
    )
    assert found is not None, log[-3000:]
    requests, width = int(found[1]), int(found[2])
    assert width == budget + 1
    trees = requests * width / 1e6
    assert float(found[3]) == pytest.approx(trees * recurrent.stash_bytes(1), rel=0.05)
    assert float(found[4]) == pytest.approx(trees * recurrent.state_bytes, rel=0.05)
    pool = re.search(
        r"max_mamba_cache_size: (\d+), conv_state size: ([\d.]+)GB, ssm_state size: ([\d.]+)GB", log
    )
    assert pool is not None, log[-3000:]
    slots, size = int(pool[1]), float(pool[2]) + float(pool[3])
    assert size > 0.5  # SGLang prints two decimals
    assert size * GB == pytest.approx(slots * recurrent.state_bytes, rel=0.05)


BUDGETS = (7, 31, 127)


def measured(budget: int, texts: list[str], **env: str) -> list[dict[str, Any]]:
    with server_of(PAIR, *tree_flags(PAIR, budget), **env) as server:
        return server.generate_all(texts, concurrency=4, **FREE)


def test_more_budget_never_lowers_the_accepted_length(oracle: Oracle, texts: list[str]) -> None:
    lengths = []
    for budget in BUDGETS:
        answers = measured(budget, texts)
        for text, answer in zip(texts, answers, strict=True):
            oracle.check_tokens(text, answer["output_ids"], oracle.tokens(text, 96))
        lengths.append(accept_length(answers))
    assert lengths == sorted(lengths)


def test_the_leak_is_what_these_tests_detect(
    oracle: Oracle, texts: list[str], tmp_path: Path
) -> None:
    """Siblings one after another: other tokens, and less accepted with more budget."""
    env = plugins.announce(tmp_path, "common.sequential_fault")
    few, many = (measured(budget, texts, **env) for budget in BUDGETS[::2])
    assert accept_length(many) < accept_length(few)
    assert any(
        answer["output_ids"] != oracle.tokens(text, 96)
        for text, answer in zip(texts, many, strict=True)
    )
