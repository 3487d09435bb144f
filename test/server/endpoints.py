"""The endpoints that stream, each asked for a whole answer and for a stream of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import requests
from common.server import Server

from server.configurations import PAIR

MODEL = str(PAIR.target)  # the name of a model that was given none


@dataclass(frozen=True)
class Request:
    """What any of the endpoints is asked.

    Attributes:
        content: a chat's only message.
        prompt: the same, for an endpoint that takes a prompt.
        limit: tokens of the answer.
        stop: strings that end it.
        n: answers; only some endpoints have more than one.
    """

    content: str
    prompt: str
    limit: int
    stop: tuple[str, ...] = ()
    n: int = 1


@dataclass(frozen=True)
class Answer:
    """What a client has in the end.

    Attributes:
        texts: one for each answer, for each kind of text (reasoning, content).
        reasons: why each ended, in the endpoint's words.
        counts: tokens of the prompt and of the answers.
    """

    texts: dict[tuple[int, str], str]
    reasons: tuple[Any, ...]
    counts: tuple[int, int]


@dataclass(frozen=True)
class Endpoint:
    """How one endpoint is asked and read.

    Attributes:
        body: the request without ``stream``.
        whole: reads the answer without a stream.
        joined: reads the events of a stream.
        has_n: whether it can be asked for several answers.
    """

    path: str
    body: Callable[[Request], dict[str, Any]]
    whole: Callable[[Any], Answer]
    joined: Callable[[list[dict[str, Any]]], Answer]
    has_n: bool = False

    def ask(self, server: Server, request: Request) -> Answer:
        answer = server.post(self.path, {**self.body(request), "stream": False})
        assert answer.status_code == 200, answer.text
        return self.whole(answer.json())

    def stream(self, server: Server, request: Request) -> Answer:
        body = {**self.body(request), "stream": True}
        with server.post(self.path, body, stream=True) as response:
            assert response.status_code == 200, response.text
            return self.joined(list(_events(response)))


def _events(response: requests.Response) -> Iterator[dict[str, Any]]:
    """The JSON of server-sent events, or of lines of JSON."""
    for line in response.iter_lines():
        data = line.removeprefix(b"data: ")
        if data.startswith(b"{"):
            yield json.loads(data)


def _add(texts: dict[tuple[int, str], str], index: int, kind: str, text: str | None) -> None:
    if text:
        texts[index, kind] = texts.get((index, kind), "") + text


def _messages(request: Request) -> list[dict[str, str]]:
    return [{"role": "user", "content": request.content}]


# /generate


def _generate_body(request: Request) -> dict[str, Any]:
    params = {"temperature": 0, "max_new_tokens": request.limit, "n": request.n}
    return {"text": request.prompt, "sampling_params": {**params, "stop": [*request.stop]}}


def _generate_whole(answer: Any) -> Answer:
    answers = answer if isinstance(answer, list) else [answer]
    metas = [one["meta_info"] for one in answers]
    return Answer(
        {(i, "text"): one["text"] for i, one in enumerate(answers) if one["text"]},
        tuple(meta["finish_reason"] for meta in metas),
        (metas[0]["prompt_tokens"], sum(meta["completion_tokens"] for meta in metas)),
    )


def _generate_joined(events: list[dict[str, Any]]) -> Answer:
    """Every event holds the answer so far: what was shown must stay."""
    shown: dict[int, dict[str, Any]] = {}
    for event in events:
        index = event.get("index", 0)
        if index in shown:
            assert event["text"].startswith(shown[index]["text"])
            count = len(shown[index]["output_ids"])
            assert event["output_ids"][:count] == shown[index]["output_ids"]
        shown[index] = event
    return _generate_whole([shown[index] for index in sorted(shown)])


# OpenAI's


def _completions_body(request: Request) -> dict[str, Any]:
    return {"prompt": request.prompt, **_openai_fields(request)}


def _chat_body(request: Request) -> dict[str, Any]:
    return {"messages": _messages(request), **_openai_fields(request)}


def _openai_fields(request: Request) -> dict[str, Any]:
    return {
        "model": MODEL,
        "temperature": 0,
        "max_tokens": request.limit,
        "stop": [*request.stop],
        "n": request.n,
        "stream_options": {"include_usage": True},
    }


def _openai_whole(answer: Any) -> Answer:
    texts: dict[tuple[int, str], str] = {}
    for choice in answer["choices"]:
        _add_choice(texts, choice, choice.get("message"))
    reasons = tuple((one["finish_reason"], one["matched_stop"]) for one in answer["choices"])
    return Answer(texts, reasons, _openai_counts(answer["usage"]))


def _openai_joined(events: list[dict[str, Any]]) -> Answer:
    texts: dict[tuple[int, str], str] = {}
    reasons: dict[int, Any] = {}
    usage = None
    for event in events:
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            assert choice["index"] not in reasons, "text after the end"
            _add_choice(texts, choice, choice.get("delta"))
            if choice["finish_reason"]:
                reasons[choice["index"]] = choice["finish_reason"], choice["matched_stop"]
    assert usage is not None
    return Answer(texts, tuple(reasons[i] for i in sorted(reasons)), _openai_counts(usage))


def _add_choice(texts: dict[tuple[int, str], str], choice: Any, message: Any) -> None:
    index = choice["index"]
    if message is None:
        _add(texts, index, "text", choice["text"])
        return
    assert not message.get("tool_calls")
    _add(texts, index, "reasoning", message.get("reasoning_content"))
    _add(texts, index, "text", message.get("content"))


def _openai_counts(usage: dict[str, int]) -> tuple[int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"]


def _responses_body(request: Request) -> dict[str, Any]:
    return {
        "model": MODEL,
        "input": request.content,
        "temperature": 0,
        "max_output_tokens": request.limit,
        "stop": [*request.stop],
        "store": False,
    }


def _responses_whole(answer: Any) -> Answer:
    texts: dict[tuple[int, str], str] = {}
    for item in answer["output"]:
        kind = "reasoning" if item["type"] == "reasoning" else "text"
        for content in item["content"] or ():
            _add(texts, 0, kind, content["text"])
    usage = answer["usage"]
    reason = answer["status"], answer["incomplete_details"]
    return Answer(texts, (reason,), (usage["input_tokens"], usage["output_tokens"]))


def _responses_joined(events: list[dict[str, Any]]) -> Answer:
    kinds = {"response.reasoning_text.delta": "reasoning", "response.output_text.delta": "text"}
    texts: dict[tuple[int, str], str] = {}
    for event in events:
        if event["type"] in kinds:
            _add(texts, 0, kinds[event["type"]], event["delta"])
    end = _responses_whole(events[-1]["response"])
    assert end.texts == texts, "the last event repeats the answer"
    return end


# Anthropic's


def _anthropic_body(request: Request) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": _messages(request),
        "temperature": 0,
        "max_tokens": request.limit,
        "stop_sequences": [*request.stop],
    }


def _anthropic_whole(answer: Any) -> Answer:
    texts: dict[tuple[int, str], str] = {}
    for block in answer["content"]:
        kind = "reasoning" if block["type"] == "thinking" else "text"
        _add(texts, 0, kind, block.get("thinking") or block.get("text"))
    usage = answer["usage"]
    counts = usage["input_tokens"], usage["output_tokens"]
    return Answer(texts, (answer["stop_reason"],), counts)


def _anthropic_joined(events: list[dict[str, Any]]) -> Answer:
    texts: dict[tuple[int, str], str] = {}
    prompt = None
    for event in events:
        if event["type"] == "message_start":
            prompt = event["message"]["usage"]["input_tokens"]
        if event["type"] == "content_block_delta":
            _add(texts, 0, "reasoning", event["delta"].get("thinking"))
            _add(texts, 0, "text", event["delta"].get("text"))
    (end,) = [event for event in events if event["type"] == "message_delta"]
    assert prompt is not None
    counts = prompt, end["usage"]["output_tokens"]
    return Answer(texts, (end["delta"]["stop_reason"],), counts)


# Ollama's


def _ollama_body(request: Request) -> dict[str, Any]:
    options = {"temperature": 0, "num_predict": request.limit, "stop": [*request.stop]}
    return {"model": MODEL, "options": options}


def _ollama_chat_body(request: Request) -> dict[str, Any]:
    return {"messages": _messages(request), **_ollama_body(request)}


def _ollama_generate_body(request: Request) -> dict[str, Any]:
    return {"prompt": request.prompt, **_ollama_body(request)}


def _ollama_whole(answer: Any) -> Answer:
    return _ollama_joined([answer])


def _ollama_joined(events: list[dict[str, Any]]) -> Answer:
    texts: dict[tuple[int, str], str] = {}
    for event in events:
        message = event.get("message") or {"content": event.get("response")}
        _add(texts, 0, "text", message["content"])
    assert [event["done"] for event in events] == [False] * (len(events) - 1) + [True]
    end = events[-1]
    assert end["total_duration"] > 0
    return Answer(texts, (end["done_reason"],), (end["prompt_eval_count"], end["eval_count"]))


ENDPOINTS = {
    "generate": Endpoint("/generate", _generate_body, _generate_whole, _generate_joined, True),
    "completions": Endpoint(
        "/v1/completions", _completions_body, _openai_whole, _openai_joined, True
    ),
    "chat": Endpoint("/v1/chat/completions", _chat_body, _openai_whole, _openai_joined, True),
    "responses": Endpoint("/v1/responses", _responses_body, _responses_whole, _responses_joined),
    "messages": Endpoint("/v1/messages", _anthropic_body, _anthropic_whole, _anthropic_joined),
    "ollama-chat": Endpoint("/api/chat", _ollama_chat_body, _ollama_whole, _ollama_joined),
    "ollama-generate": Endpoint(
        "/api/generate", _ollama_generate_body, _ollama_whole, _ollama_joined
    ),
}
