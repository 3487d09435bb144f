"""Requests that DDTREE does not serve: HTTP 400 with the feature's name, and the server goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from common.server import Server

from server.client import is_idle
from server.configurations import PAIR
from server.oracle import Oracle
from waiting import wait_until

pytestmark = pytest.mark.parametrize("tree", ["narrow"], indirect=True)

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TAGS = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f>"],
}


def logit_processor() -> str:
    from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor

    return DisallowedTokensLogitsProcessor.to_str()


# Name in the message, fields of the request, sampling parameters.
GENERATE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("json_schema", {}, {"json_schema": json.dumps(SCHEMA)}),
    ("regex", {}, {"regex": "[a-z]+"}),
    ("ebnf", {}, {"ebnf": 'root ::= "yes" | "no"'}),
    ("structural_tag", {}, {"structural_tag": json.dumps(TAGS)}),
    ("frequency_penalty", {}, {"frequency_penalty": 0.5}),
    ("presence_penalty", {}, {"presence_penalty": -0.5}),
    ("repetition_penalty", {}, {"repetition_penalty": 1.2}),
    ("min_new_tokens", {}, {"min_new_tokens": 4}),
    ("logit_bias", {}, {"logit_bias": {"17": 5.0}}),
    ("return_logprob", {"return_logprob": True}, {}),
    ("return_logprob", {"return_logprob": True, "top_logprobs_num": 3}, {}),
    ("return_hidden_states", {"return_hidden_states": True}, {}),
    ("custom_logit_processor", {"custom_logit_processor": "no processor at all"}, {}),
    (
        "custom_logit_processor",
        {"custom_logit_processor": logit_processor()},
        {"custom_params": {"token_ids": [5]}},
    ),
]
JSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "record", "schema": SCHEMA}}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
NAMED_TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look_up"}}
# Name in the message, fields of the request.
CHAT: list[tuple[str, dict[str, Any]]] = [
    ("logprobs", {"logprobs": True, "top_logprobs": 2}),
    ("response_format", {"response_format": JSON_FORMAT}),
    ("response_format", {"response_format": {"type": "json_object"}}),
    ("tool_choice", {"tools": [TOOL], "tool_choice": "required"}),
    ("tool_choice", {"tools": [TOOL], "tool_choice": NAMED_TOOL}),
    ("frequency_penalty", {"frequency_penalty": 0.5}),
    ("presence_penalty", {"presence_penalty": 0.5}),
    ("repetition_penalty", {"repetition_penalty": 1.1}),
    ("min_tokens", {"min_tokens": 3}),
    ("logit_bias", {"logit_bias": {"17": 5.0}}),
    ("regex", {"regex": "[a-z]+"}),
    ("ebnf", {"ebnf": 'root ::= "yes"'}),
    ("LoRA adapters (model)", {"model": "tiny:adapter"}),
]
COMPLETION: list[tuple[str, dict[str, Any]]] = [
    ("logprobs", {"logprobs": 2}),
    ("frequency_penalty", {"frequency_penalty": 0.5}),
    ("min_tokens", {"min_tokens": 3}),
    ("logit_bias", {"logit_bias": {"17": 5.0}}),
    ("response_format", {"response_format": {"type": "json_object"}}),
    ("json_schema", {"json_schema": json.dumps(SCHEMA)}),
    ("regex", {"regex": "[a-z]+"}),
]
ANTHROPIC_TOOL = {"name": "look_up", "input_schema": SCHEMA}
MESSAGES: list[tuple[str, dict[str, Any]]] = [
    ("tool_choice", {"tools": [ANTHROPIC_TOOL], "tool_choice": {"type": "any"}}),
    (
        "output_config.format",
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    ),
]
RESPONSES: list[tuple[str, dict[str, Any]]] = [
    ("text.format", {"text": {"format": {"type": "json_schema", "name": "r", "schema": SCHEMA}}}),
    (
        "tool_choice",
        {"tools": [{"type": "function", **TOOL["function"]}], "tool_choice": "required"},
    ),
    ("frequency_penalty", {"frequency_penalty": 0.5}),
]
OLLAMA: list[tuple[str, dict[str, Any]]] = [
    ("format", {"format": "json"}),
    ("format", {"format": SCHEMA}),
    ("options.presence_penalty", {"options": {"presence_penalty": 0.5}}),
]


def cases() -> list[tuple[str, str, dict[str, Any]]]:
    """Feature, path and body of every request above."""
    found = []
    for feature, fields, sampling in GENERATE:
        params = {"max_new_tokens": 8, "temperature": 0, **sampling}
        found.append((feature, "/generate", {"text": "x = 1", "sampling_params": params, **fields}))
    common = {"model": "tiny", "max_tokens": 8}
    messages = [{"role": "user", "content": "x"}]
    chat = {**common, "messages": messages}
    for path, body, requests in (
        ("/v1/chat/completions", chat, CHAT),
        ("/invocations", chat, CHAT[:2]),
        ("/v1/completions", {**common, "prompt": "x = 1"}, COMPLETION),
        ("/v1/messages", chat, MESSAGES),
        (
            "/v1/responses",
            {"model": str(PAIR.target), "max_output_tokens": 8, "input": "x"},
            RESPONSES,
        ),
        ("/api/chat", {"model": "tiny", "messages": messages}, OLLAMA),
        ("/api/generate", {"model": "tiny", "prompt": "x = 1"}, OLLAMA),
    ):
        found += [(feature, path, {**body, **fields}) for feature, fields in requests]
    return found


CASES = pytest.mark.parametrize(
    ("feature", "path", "body"),
    [pytest.param(*case, id=f"{case[1]}-{case[0]}-{i}") for i, case in enumerate(cases())],
)


@CASES
@pytest.mark.parametrize("streamed", [False, True])
def test_refused(
    tree: Server, feature: str, path: str, body: dict[str, Any], streamed: bool
) -> None:
    """In the words of the API called, and before a stream begins."""
    answer = tree.post(path, {**body, "stream": streamed})
    assert answer.status_code == 400, answer.text
    assert f"DDTREE does not support {feature} yet" in answer.text


MIN_P = [
    ("/generate", {"text": "x", "sampling_params": {"min_p": 0.1, "max_new_tokens": 4}}),
    ("/v1/completions", {"model": "tiny", "prompt": "x", "min_p": 0.1, "max_tokens": 4}),
    (
        "/v1/chat/completions",
        {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "min_p": 0.1},
    ),
]


@pytest.mark.parametrize(("path", "body"), MIN_P, ids=[path for path, _ in MIN_P])
@pytest.mark.parametrize("streamed", [False, True])
def test_min_p_beside_seeds(tree: Server, path: str, body: dict[str, Any], streamed: bool) -> None:
    """SGLang's sampler would stop the server at the first of them."""
    answer = tree.post(path, {**body, "stream": streamed})
    assert answer.status_code == 400, answer.text
    assert "min_p does not work with --enable-deterministic-inference" in answer.text


def test_one_refusal_names_all_features(tree: Server) -> None:
    params = {"regex": "a+", "min_new_tokens": 2, "logit_bias": {"3": 1.0}}
    answer = tree.post("/generate", {"text": "x", "sampling_params": params})
    assert answer.status_code == 400
    assert "regex, min_new_tokens, logit_bias" in answer.text


def test_values_that_ask_for_nothing_are_served(
    tree: Server, oracle: Oracle, prompts: list[str]
) -> None:
    """Clients send defaults along."""
    params = {
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
        "logit_bias": {},
        "max_new_tokens": 16,
        "temperature": 0,
    }
    body = {"text": prompts[0], "sampling_params": params, "return_logprob": False}
    answer = tree.post("/generate", body)
    assert answer.status_code == 200, answer.text
    oracle.check_tokens(prompts[0], answer.json()["output_ids"], oracle.tokens(prompts[0], 16))


def test_server_goes_on_between_refusals(tree: Server, oracle: Oracle, prompts: list[str]) -> None:
    """Refused and served requests at once: the served ones do not notice."""
    text = prompts[1]
    good = {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True}
    bodies = [
        {"text": text, "sampling_params": {**good, "regex": "a+"} if i % 2 else good}
        for i in range(8)
    ]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda body: tree.post("/generate", body), bodies))
    for i, answer in enumerate(answers):
        assert answer.status_code == (400 if i % 2 else 200)
        if not i % 2:
            oracle.check_tokens(text, answer.json()["output_ids"], oracle.tokens(text, 32))
    assert wait_until(lambda: is_idle(tree))
