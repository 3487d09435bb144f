"""What of a request is refused, and in whose words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_ddtree.engine.requests import features, message, prompts, sampling, words

SIZE = 100


@pytest.mark.parametrize(
    ("feature", "path", "body", "expected"),
    [
        ("return_logprob", "/generate", {"return_logprob": True}, "return_logprob"),
        ("return_logprob", None, None, "return_logprob"),
        ("return_logprob", "/v1/completions", {"logprobs": 1}, "logprobs"),
        ("return_logprob", "/v1/score", {"items": ["x"]}, "this endpoint"),
        ("min_new_tokens", "/v1/chat/completions", {"min_tokens": 2}, "min_tokens"),
        (
            "json_schema",
            "/v1/chat/completions",
            {"response_format": {"type": "text"}, "tool_choice": "required", "tools": [{}]},
            "tool_choice",
        ),
        (
            "structural_tag",
            "/v1/chat/completions",
            {"tool_choice": "auto", "tools": [{"type": "function"}]},
            "tools",
        ),
        (
            "json_schema",
            "/v1/chat/completions",
            {"response_format": {"type": "json_object"}, "tool_choice": "auto"},
            "response_format",
        ),
        ("json_schema", "/v1/messages", {"tool_choice": {"type": "any"}}, "tool_choice"),
        ("json_schema", "/v1/responses", {"text": {"format": {"type": "x"}}}, "text.format"),
        ("return_logprob", "/v1/responses", {"include": ["x"]}, "include"),
        ("json_schema", "/api/chat", {"format": "json"}, "format"),
        ("lora_path", "/v1/completions", {"model": "a:b"}, "LoRA adapters (model)"),
        # Nothing in the body asks for it: a default of the model.
        ("repetition_penalty", "/v1/chat/completions", {"model": "a"}, "repetition_penalty"),
        ("json_schema", "/v1/chat/completions", ["no object"], "response_format"),
    ],
)
def test_words(feature: str, path: str | None, body: Any, expected: str) -> None:
    assert words.name(feature, path, body) == expected


def request(**fields: Any) -> Any:
    return SimpleNamespace(**{"sampling_params": None, **fields})


def test_what_asks_for_nothing() -> None:
    """Clients and SGLang's own APIs send defaults along."""
    neutral = {**features.PARAMETERS, "regex": "", "logit_bias": {}, "temperature": 0.5}
    silent: dict[str, None] = dict.fromkeys(features.PARAMETERS)
    fields = dict.fromkeys(features.FIELDS, False)
    for params in (None, {}, neutral, silent, [neutral, silent]):
        assert features.of_request(request(sampling_params=params, **fields), True) == []


@given(st.sampled_from(sorted(features.PARAMETERS)), st.integers(0, 3))
def test_one_prompt_of_a_batch_is_enough(name: str, index: int) -> None:
    params: list[dict[str, Any]] = [{} for _ in range(4)]
    params[index] = {name: 0.5}
    assert features.of_request(request(sampling_params=params), False) == [name]
    flags = [i == index for i in range(4)]
    assert features.of_request(request(return_logprob=flags), False) == ["return_logprob"]


def test_min_p_is_refused_beside_seeds_only() -> None:
    params = request(sampling_params={"min_p": 0.1})
    assert features.of_request(params, False) == []
    assert features.of_request(params, True) == ["min_p"]
    assert "--enable-deterministic-inference" in message.unsupported(["min_p"])
    both = message.unsupported(["regex", "min_p", "ebnf"])
    assert "does not support regex, ebnf yet" in both
    assert "min_p does not work" in both


TOKENS = st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=6)
NO_TOKEN = st.one_of(
    st.integers(max_value=-1), st.integers(min_value=SIZE), st.none(), st.floats(), st.text()
)


@given(TOKENS, st.lists(TOKENS, min_size=1, max_size=4))
def test_prompts_of_the_vocabulary(ids: list[int], batch: list[list[int]]) -> None:
    assert prompts.problem(ids, SIZE) is None
    assert prompts.problem(batch, SIZE) is None


@given(TOKENS, NO_TOKEN, st.data())
def test_one_token_outside_is_found(ids: list[Any], token: Any, data: st.DataObject) -> None:
    at = data.draw(st.integers(1, len(ids)))
    ids.insert(at, token)
    assert repr(token) in str(prompts.problem(ids, SIZE))
    assert str(prompts.problem([[1], ids], SIZE)).startswith("prompt 1 of the batch: ")


def test_an_empty_prompt_of_a_batch_is_found() -> None:
    assert "prompt 1 of the batch is empty" in str(prompts.problem([[1], []], SIZE))


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"top_k": 2**31}, "top_k must be from -1 to"),
        ({"n": 0}, "n must be from 1 to"),
        ({"n": 10**9}, "n must be from 1 to"),
        ({"temperature": "hot"}, "temperature: Expected `float`"),
        ({"stop": [1]}, "stop: Expected `str`"),
        ({"stop_token_ids": "abc"}, "stop_token_ids: Expected"),
        ({"stop_regex": ["a", "("]}, "'(' is no regular expression"),
        ({"max_new_tokens": 1.5}, "max_new_tokens: Expected"),
        ({"custom_params": {"a": {"b": [1]}}}, "custom_params: Expected"),
        ({"is_normalized": True}, "no sampling parameter 'is_normalized'"),
        ({"bogus": 1}, "no sampling parameter 'bogus'"),
    ],
)
def test_sampling_parameters_that_cannot_be_held(params: dict[str, Any], expected: str) -> None:
    assert expected in str(sampling.problem(params))


def test_sampling_parameters_as_apis_convert_them() -> None:
    params = {
        "temperature": 1,
        "max_new_tokens": None,
        "stop": ["a", "b"],
        "stop_token_ids": [1, 2],
        "top_k": -1,
        "n": 1024,
        "custom_params": {"a": [1, None], "b": {"c": "d"}},
        "sampling_seed": 2**63 - 1,
        "ebnf_full_assistant": True,
    }
    assert sampling.problem(params) is None
