"""A stream's pieces are the answer without a stream, at every endpoint that streams."""

from __future__ import annotations

import dataclasses

import pytest
from common.server import Server

from server.configurations import PAIR
from server.endpoints import ENDPOINTS, Answer, Request

TREES = pytest.mark.parametrize("tree", ["narrow", "wide"], indirect=True)
EVERYWHERE = pytest.mark.parametrize("endpoint", ENDPOINTS)
# Ends within a step, at its end, and long enough for an end of its own.
LIMITS = (1, 13, 14, 64)


def chats(count: int) -> list[tuple[str, str]]:
    """Messages of held-out chats, and each as the prompt that asks for its answer."""
    records = [record for record in PAIR.prompts() if record["kind"] == "chat"]
    return [(record["messages"][-1]["content"], record["prompt"]) for record in records[:count]]


def text_of(answer: Answer) -> str:
    """Of the first of the answers, reasoning first."""
    return "".join(answer.texts.get((0, kind), "") for kind in ("reasoning", "text"))


@TREES
@EVERYWHERE
def test_stream_is_the_answer(tree: Server, endpoint: str) -> None:
    asked = ENDPOINTS[endpoint]
    for chat in chats(3):
        for limit in LIMITS:
            if limit == 1 and endpoint == "responses":
                continue  # SGLang takes two tokens off max_output_tokens
            request = Request(*chat, limit)
            whole = asked.ask(tree, request)
            assert asked.stream(tree, request) == whole
            assert limit < 13 or len(text_of(whole)) > 4


@TREES
@EVERYWHERE
def test_stream_that_a_string_stops(tree: Server, endpoint: str) -> None:
    """Strings of several tokens from all over the answer, and one that never comes."""
    asked = ENDPOINTS[endpoint]
    shortened = 0
    for chat in chats(2):
        request = Request(*chat, 64)
        text = text_of(asked.ask(tree, request))
        for place in range(2, len(text) - 8, max(len(text) // 5, 1)):
            stop = text[place : place + 7]
            stopped = dataclasses.replace(request, stop=("never comes", stop[2:], stop))
            whole = asked.ask(tree, stopped)
            assert asked.stream(tree, stopped) == whole
            kept = text_of(whole)
            assert text.startswith(kept)
            assert stop not in kept
            shortened += 0 < len(kept) < len(text)
    assert shortened > 3


@TREES
@pytest.mark.parametrize("endpoint", [name for name, one in ENDPOINTS.items() if one.has_n])
def test_streams_of_two_answers(tree: Server, endpoint: str) -> None:
    asked = ENDPOINTS[endpoint]
    for chat in chats(2):
        for stop in ((), ("e", "\n")):
            request = Request(*chat, 48, stop, n=2)
            whole = asked.ask(tree, request)
            assert len(whole.reasons) == 2
            assert asked.stream(tree, request) == whole
