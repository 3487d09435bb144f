"""A latent-attention target with experts: trees, prefix cache, pages, two ranks, Triton's mask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from common.pairs import Pair
from common.server import Server, tree_flags

from server.client import is_idle, load
from server.configurations import COMMON, STRICT
from server.kimi_target import write_kimi_target
from server.oracle import Oracle
from server.pair_server import (
    check_against_transformers,
    check_prefix_hits,
    plain_oracle,
    server_of,
)
from waiting import wait_until

PAIR = Pair("tiny-mla")

FREE = {"max_new_tokens": 64, "ignore_eos": True}
SHARDED = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
TREES: dict[str, tuple[int, tuple[str, ...], dict[str, str]]] = {
    # Prompts in chunks of two pages, and a pool that holds a few requests.
    "pages of 64": (
        63,
        ("--page-size", "64", "--chunked-prefill-size", "128", "--max-total-tokens", "2048"),
        {},
    ),
    # Rank 0 decides for both; every token has a page of its own.
    "two ranks": (31, ("--tp-size", "2"), SHARDED),
}


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with plain_oracle(PAIR) as oracle:
        yield oracle


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [record["prompt"] for record in PAIR.prompts(4)]


@pytest.fixture(scope="module", params=TREES)
def tree(request: pytest.FixtureRequest) -> Iterator[Server]:
    budget, flags, env = TREES[request.param]
    flags = (*tree_flags(PAIR, budget), *flags, "--enable-cache-report")
    with server_of(PAIR, *flags, **env) as server:
        yield server
        assert server.is_alive(), server.log()[-6000:]


def test_plain_decoding_agrees_with_transformers(oracle: Oracle, texts: list[str]) -> None:
    check_against_transformers(oracle, texts[:3])


def test_cold_and_warm_prefix(tree: Server, oracle: Oracle, texts: list[str]) -> None:
    assert "TorchTreeMLABackend" in tree.log()
    tree.flush_cache()
    for _ in ("cold", "warm"):
        answers = tree.generate_all(texts, concurrency=4, **FREE)
        for text, answer in zip(texts, answers, strict=True):
            oracle.check_tokens(text, answer["output_ids"], oracle.tokens(text, 64))
    assert max(answer["meta_info"]["spec_accept_length"] for answer in answers) > 2


def test_prefix_hits(tree: Server, oracle: Oracle, texts: list[str]) -> None:
    check_prefix_hits(tree, oracle, texts[:2])


def test_cached_conversation(tree: Server, oracle: Oracle, texts: list[str]) -> None:
    """Every turn continues the one before it: a prefix hit, then tree steps."""
    tree.flush_cache()
    messages = [{"role": "system", "content": "Answer with code and nothing else."}]
    for turn in range(3):
        messages.append({"role": "user", "content": f"{turn}: {texts[turn][:60]}"})
        body = {"model": "x", "messages": messages, "temperature": 0, "max_tokens": 40}
        answer = tree.post("/v1/chat/completions", body).json()
        expected = oracle.post("/v1/chat/completions", body)["choices"][0]["message"]
        assert answer["choices"][0]["message"]["content"] == expected["content"]
        messages.append({"role": "assistant", "content": expected["content"]})
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert wait_until(lambda: is_idle(tree)), load(tree)


def test_greedy_among_sampled_clients(tree: Server, oracle: Oracle, texts: list[str]) -> None:
    """Experts are chosen row by row: neighbours in a batch change no answer."""
    many = [texts[i % len(texts)] for i in range(12)]
    params = [
        {"temperature": 0, "max_new_tokens": 8 + 6 * i, "ignore_eos": True}
        if i % 3
        else {"temperature": 0.9, "max_new_tokens": 60 - i, "ignore_eos": True}
        for i in range(12)
    ]
    answers = tree.post("/generate", {"text": many, "sampling_params": params}).json()
    for text, wanted, answer in zip(many, params, answers, strict=True):
        assert answer["meta_info"]["completion_tokens"] == wanted["max_new_tokens"]
        if wanted["temperature"] == 0:
            expected = oracle.tokens(text, wanted["max_new_tokens"])
            oracle.check_tokens(text, answer["output_ids"], expected)


def test_text_of_kimi_k25(oracle: Oracle, texts: list[str], tmp_path: Path) -> None:
    """The class of Kimi K2.5 and K2.6 around the pair's text model, with the pair's drafter."""
    target = write_kimi_target(PAIR.target, tmp_path / "kimi")
    flags = (*COMMON, *tree_flags(PAIR, 31), "--trust-remote-code")
    with Server(target, flags, STRICT) as server:
        answers = server.generate_all(texts, concurrency=2, **FREE)
        messages = [{"role": "user", "content": texts[0][:60]}]
        body = {"model": "x", "messages": messages, "temperature": 0, "max_tokens": 40}
        chat = server.post("/v1/chat/completions", body).json()
    for text, answer in zip(texts, answers, strict=True):
        oracle.check_tokens(text, answer["output_ids"], oracle.tokens(text, 64))
    assert max(answer["meta_info"]["spec_accept_length"] for answer in answers) > 2
    expected = oracle.post("/v1/chat/completions", body)
    assert chat["choices"][0]["message"] == expected["choices"][0]["message"]


def test_custom_mask_of_the_triton_backend(oracle: Oracle, texts: list[str]) -> None:
    """SGLang's own backend with a custom mask, in Triton's interpreter at about a second a step."""
    flags = (*tree_flags(PAIR, 31), "--attention-backend", "triton", "--page-size", "16")
    with server_of(PAIR, *flags, TRITON_INTERPRET="1") as server:
        assert "TritonAttnBackend with a custom mask" in server.log()
        short = sorted(texts, key=len)[:2]
        answers = server.generate_all(short, concurrency=2, max_new_tokens=12, ignore_eos=True)
    for text, answer in zip(short, answers, strict=True):
        oracle.check_tokens(text, answer["output_ids"], oracle.tokens(text, 12))
        assert answer["meta_info"]["spec_verify_ct"] < 11, "no step accepted a draft"
