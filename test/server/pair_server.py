"""Servers and oracle of one pair's own test module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from common.pairs import Pair
from common.server import Server

from server.configurations import COMMON, STRICT
from server.oracle import Oracle
from server.reference import ReferenceTarget


def server_of(pair: Pair, *flags: str, **env: str) -> Server:
    return Server(pair.target, (*COMMON, *flags), {**STRICT, **env})


@contextmanager
def plain_oracle(pair: Pair, *flags: str) -> Iterator[Oracle]:
    """Plain decoding of the same build; a few near ties among all answers are excused."""
    with server_of(pair, *flags) as plain:
        oracle = Oracle(plain, ReferenceTarget(pair))
        yield oracle
        assert oracle.excused <= 2


def check_against_transformers(oracle: Oracle, texts: Sequence[str]) -> None:
    """The oracle of the other tests, against one that shares no code with it."""
    for text in texts:
        ids = oracle.reference.encode(text)
        mismatch = oracle.reference.greedy_mismatch(ids, oracle.tokens(text))
        assert mismatch is None, f"{mismatch}, after {text!r}"


def continue_from(server: Server, ids: Sequence[int], count: int) -> tuple[list[int], int]:
    """Greedy continuation of token ids, and how many of them the server had cached."""
    params = {"temperature": 0, "max_new_tokens": count, "ignore_eos": True}
    body = {"input_ids": list(ids), "sampling_params": params}
    answer = server.post("/generate", body)
    answer.raise_for_status()
    return answer.json()["output_ids"], answer.json()["meta_info"]["cached_tokens"]


def check_prefix_hits(server: Server, oracle: Oracle, texts: Sequence[str]) -> None:
    """Prompts that continue cached answers and leave them again, in and between pages.

    A cached answer was written by tree steps: what is reused must be the accepted path's rows. A
    prefix that ends inside a page is reused up to that page, at page size 1 up to its last token.
    """
    server.flush_cache()
    page_size = server.info()["page_size"]
    for text in texts:
        expected = oracle.tokens(text, 96)
        prompt = oracle.reference.encode(text)
        server.generate(text, max_new_tokens=96, ignore_eos=True)
        for kept in (33, 64, 80 - (len(prompt) + 80) % page_size):
            ids = [*prompt, *expected[:kept]]
            got, cached = continue_from(server, ids, 96 - kept)
            oracle.check_tokens(text, [*expected[:kept], *got], expected)
            assert cached >= (len(ids) - 1) // page_size * page_size
        # Another turn, from the middle of the answer: it shares a prefix with what is cached only.
        other = [*prompt, *expected[:50], *reversed(prompt[-20:])]
        params = {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True}
        cold = oracle.post("/generate", {"input_ids": other, "sampling_params": params})
        got, cached = continue_from(server, other, 32)
        oracle.check_tokens(text, [*expected[:50], *got], [*expected[:50], *cold["output_ids"]])
        assert cached >= (len(prompt) + 50) // page_size * page_size
