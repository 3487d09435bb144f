"""Requests that are wrong, and must be answered as such without harm to any other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
MESSAGES = [{"role": "user", "content": "x"}]


@dataclass(frozen=True)
class BadRequest:
    """One wrong request.

    Attributes:
        name: what is wrong.
        path: endpoint.
        body: JSON, or text that is none.
        is_fatal: it ends a server of plain SGLang 0.5.23.
        only_tree: plain decoding serves it.
    """

    name: str
    path: str
    body: Any
    is_fatal: bool = False
    only_tree: bool = False


def _generate(name: str, fields: dict[str, Any], **sampling: Any) -> BadRequest:
    params = {"max_new_tokens": 8, "temperature": 0, **sampling}
    body = {"text": "x = 1", "sampling_params": params, **fields}
    return BadRequest(name, "/generate", {k: v for k, v in body.items() if v is not None})


def _unsupported(path: str, **fields: Any) -> BadRequest:
    """A feature that trees do not serve, as a request of ``path``."""
    name = ", ".join(fields)
    if path == "/generate":
        request = {k: fields.pop(k) for k in list(fields) if k.startswith("return_")}
        made = _generate(name, request, **fields)
        return BadRequest(name, path, made.body, only_tree=True)
    prompt = {"prompt": "x = 1"} if path == "/v1/completions" else {"messages": MESSAGES}
    body = {"model": "soak", "max_tokens": 8, **prompt, **fields}
    return BadRequest(name, path, body, only_tree=True)


def bad_requests(vocabulary: int) -> list[BadRequest]:
    """All kinds of them, for a target with ``vocabulary`` tokens."""
    schema = {"type": "json_schema", "json_schema": {"name": "record", "schema": SCHEMA}}
    completion, chat = "/v1/completions", "/v1/chat/completions"
    unknown = [3, vocabulary + 7]
    return [
        BadRequest("empty text", "/generate", {"text": ""}, is_fatal=True),
        BadRequest("no prompt", "/generate", {"sampling_params": {}}),
        BadRequest("no token", "/generate", {"input_ids": []}, is_fatal=True),
        BadRequest("unknown token", "/generate", {"input_ids": unknown}, is_fatal=True),
        BadRequest("negative token", "/generate", {"input_ids": [-1]}, is_fatal=True),
        BadRequest(
            "unknown token", completion, {"model": "soak", "prompt": [unknown]}, is_fatal=True
        ),
        BadRequest("no experts", "/start_expert_distribution_record", {}, is_fatal=True),
        BadRequest("no JSON", "/generate", "{"),
        BadRequest("no JSON", chat, "{"),
        BadRequest("no messages", chat, {"model": "soak", "messages": []}),
        BadRequest("unknown role", chat, {"model": "soak", "messages": [{"role": "x"}]}),
        BadRequest("number as prompt", "/generate", {"text": 5}),
        BadRequest("embeddings", "/v1/embeddings", {"model": "soak", "input": "x"}),
        BadRequest("no such session", "/generate", {"text": "x", "session_params": {"id": "no"}}),
        _generate("too long", {"text": None, "input_ids": [5] * 40000}),
        _generate("temperature", {}, temperature=-1),
        _generate("top_p", {}, temperature=0.7, top_p=2),
        _generate("top_k", {}, temperature=0.7, top_k=-5),
        _generate("min_p", {}, temperature=0.7, min_p=2),
        _generate("max_new_tokens", {}, max_new_tokens=-1),
        _generate("type of max_new_tokens", {}, max_new_tokens="many"),
        _generate("unknown parameter", {}, no_such_parameter=1),
        _unsupported("/generate", json_schema=json.dumps(SCHEMA)),
        _unsupported("/generate", regex="[a-z]+"),
        _unsupported("/generate", ebnf='root ::= "yes" | "no"'),
        _unsupported("/generate", frequency_penalty=0.5),
        _unsupported("/generate", repetition_penalty=1.2),
        _unsupported("/generate", min_new_tokens=4),
        _unsupported("/generate", logit_bias={"17": 5.0}),
        _unsupported("/generate", return_logprob=True),
        _unsupported(completion, logprobs=2),
        _unsupported(completion, logprobs=2, stream=True),
        _unsupported(completion, presence_penalty=0.5),
        _unsupported(chat, logprobs=True, top_logprobs=2),
        _unsupported(chat, response_format=schema),
        _unsupported(chat, response_format={"type": "json_object"}, stream=True),
        _unsupported(chat, tools=[TOOL], tool_choice="required"),
        _unsupported(chat, min_tokens=3),
        _unsupported("/api/chat", format="json", stream=False),
    ]
