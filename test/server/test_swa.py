"""A target with sliding-window layers (Gemma-4): a node's window is measured by its depth."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from common.pairs import Pair
from common.server import Server, tree_flags

from server.oracle import Oracle
from server.pair_server import (
    check_against_transformers,
    check_prefix_hits,
    plain_oracle,
    server_of,
)

PAIR = Pair("tiny-swa")


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with plain_oracle(PAIR) as oracle:
        yield oracle


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [record["prompt"] for record in PAIR.prompts(4)]


@pytest.fixture(scope="module")
def tree() -> Iterator[Server]:
    with server_of(PAIR, *tree_flags(PAIR, 63), "--page-size", "16") as server:
        yield server
        assert server.is_alive(), server.log()[-6000:]


def test_plain_decoding_agrees_with_transformers(oracle: Oracle, texts: list[str]) -> None:
    check_against_transformers(oracle, texts[:3])


def test_answers_longer_than_the_window(tree: Server, oracle: Oracle, texts: list[str]) -> None:
    window = json.loads((PAIR.target / "config.json").read_text())["sliding_window"]
    count = 96
    assert window < count + min(len(oracle.reference.encode(text)) for text in texts)
    for _ in ("cold", "warm"):
        answers = tree.generate_all(texts, concurrency=3, max_new_tokens=count, ignore_eos=True)
        for text, answer in zip(texts, answers, strict=True):
            oracle.check_tokens(text, answer["output_ids"], oracle.tokens(text, count))
    assert max(answer["meta_info"]["spec_accept_length"] for answer in answers) > 2


def test_prefix_hits(tree: Server, oracle: Oracle, texts: list[str]) -> None:
    check_prefix_hits(tree, oracle, texts[:2])
