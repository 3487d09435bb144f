"""The embedded default: a chat model of the package index, with the drafter that ships for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from common.equality import Reference, accept_length, references, tally
from common.pairs import Pair
from common.server import Server, tree_flags

from server.configurations import STRICT

PAIR = Pair("smollm2")
LENGTH = 40
FLAGS = ("--context-length", "1024", *PAIR.flags)


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    return [record["prompt"] for record in PAIR.prompts(4)]


@pytest.fixture(scope="module")
def expected(prompts: list[str]) -> list[Reference]:
    with Server(PAIR.target, FLAGS, STRICT) as plain:
        return references(plain, prompts, LENGTH, concurrency=4)


@pytest.fixture(scope="module")
def tree(expected: list[Reference]) -> Iterator[Server]:
    """Started when the plain server is gone: the two do not have to share the memory."""
    with Server(PAIR.target, (*FLAGS, *tree_flags(PAIR, 15)), STRICT) as server:
        yield server


def test_it_answers_questions(tree: Server) -> None:
    question = {"role": "user", "content": "What is the capital of France?"}
    body = {"model": "smollm2", "messages": [question], "temperature": 0, "max_tokens": 32}
    choice = tree.post("/v1/chat/completions", body).json()["choices"][0]
    assert "Paris" in choice["message"]["content"]
    assert choice["finish_reason"] == "stop"


def test_it_writes_what_plain_decoding_writes(
    tree: Server, expected: list[Reference], prompts: list[str]
) -> None:
    for clients in (1, 4):
        answers = tree.generate_all(prompts, clients, max_new_tokens=LENGTH, ignore_eos=True)
        result = tally(expected, [answer["output_ids"] for answer in answers])
        assert result.differing == 0
        assert result.excused <= 1
        assert accept_length(answers) > 1.4, "the drafter is worth its work"
