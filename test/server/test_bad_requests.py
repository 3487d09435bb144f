"""Requests that no model can serve: HTTP 400, and the others in flight do not notice."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from common.server import Server

from server.client import is_idle
from server.configurations import PAIR
from server.oracle import Oracle
from waiting import wait_until

pytestmark = pytest.mark.parametrize("tree", ["narrow"], indirect=True)

MANY = 2**40  # no vocabulary is so large
LENGTH = {"max_new_tokens": 4, "temperature": 0}
NATIVE: list[dict[str, Any]] = [
    {"text": ""},
    {"text": ["x", ""]},
    {"text": "", "image_data": "none"},  # of a model that reads no images
    {"text": "x", "positional_embed_overrides": [[1]]},
    {"input_ids": []},
    {"input_ids": [1, MANY]},
    {"input_ids": [-1, 1]},
    {"input_ids": [[1], [1, -7]]},
    {"input_ids": [[1], [MANY]]},
    {"input_ids": [[1], []]},
    {"input_ids": [[1, 2], [MANY]], "sampling_params": {**LENGTH, "n": 2}},
]
COMPLETION: list[Any] = ["", ["x", ""], [MANY], [-1], [[1, 2], [MANY]], [[1], [-1]]]
UNSERVED: list[tuple[str, dict[str, Any]]] = [
    *(("/generate", {"sampling_params": LENGTH, **fields}) for fields in NATIVE),
    *(
        ("/v1/completions", {"model": "tiny", "max_tokens": 4, "prompt": prompt})
        for prompt in COMPLETION
    ),
    *(("/vertex_generate", {"instances": [fields]}) for fields in NATIVE[4:7]),
]
# What SGLang's scheduler can't decode, and what its tensors can't hold.
SAMPLING: list[dict[str, Any]] = [
    {"top_k": 2**40},
    {"n": 0},
    {"n": 10**9},
    {"stop": [1]},
    {"stop_token_ids": [0.5]},
    {"temperature": "hot"},
    {"max_new_tokens": 1.5},
    {"stop_regex": "("},
    {"custom_params": {"a": {"b": [1]}}},
    {"is_normalized": True},
    {"no_such": 1},
]
UNHELD: list[tuple[str, dict[str, Any]]] = [
    *(("/generate", {"text": "x", "sampling_params": {**LENGTH, **wrong}}) for wrong in SAMPLING),
    ("/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 4, "top_k": 2**40}),
    ("/api/generate", {"model": "tiny", "prompt": "x", "options": {"temperature": "hot"}}),
]
NO_GROUP: list[tuple[str, dict[str, Any]]] = [
    ("/send_weights_to_remote_instance", {"master_address": "127.0.0.1", "ports": "1"}),
    (
        "/init_weights_send_group_for_remote_instance",
        {"master_address": "127.0.0.1", "ports": "1,2", "group_rank": 0, "world_size": 2},
    ),
    (
        "/init_weights_update_group",
        {
            "master_address": "127.0.0.1",
            "master_port": 1,
            "rank_offset": 0,
            "world_size": 2,
            "group_name": "",
        },
    ),
    ("/destroy_weights_update_group", {"group_name": "none"}),
]
BARE = [f"/{action}_expert_distribution_record" for action in ("start", "stop", "dump")]


def test_others_in_flight_are_not_disturbed(
    tree: Server, oracle: Oracle, prompts: list[str]
) -> None:
    """Bad requests of every kind while good ones decode."""
    text = prompts[2]
    good = {"temperature": 0, "max_new_tokens": 96, "ignore_eos": True}
    bad = [*UNSERVED, *UNHELD, *NO_GROUP, *((path, {}) for path in BARE)]
    with ThreadPoolExecutor(8) as clients:
        served = [clients.submit(tree.generate, text, **good) for _ in range(4)]
        refused = list(clients.map(lambda case: tree.post(*case).status_code, bad))
    assert set(refused) == {400}
    for answer in served:
        oracle.check_tokens(text, answer.result()["output_ids"], oracle.tokens(text, 96))
    assert wait_until(lambda: is_idle(tree))


@pytest.mark.parametrize(("path", "body"), UNSERVED, ids=[str(case) for case in UNSERVED])
@pytest.mark.parametrize("streamed", [False, True])
def test_prompts(tree: Server, path: str, body: dict[str, Any], streamed: bool) -> None:
    """No token at all, or one that is not in the vocabulary."""
    answer = tree.post(path, {**body, "stream": streamed})
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize(("path", "body"), UNHELD, ids=[str(case) for case in UNHELD])
@pytest.mark.parametrize("streamed", [False, True])
def test_sampling_parameters(tree: Server, path: str, body: dict[str, Any], streamed: bool) -> None:
    answer = tree.post(path, {**body, "stream": streamed})
    assert answer.status_code == 400, answer.text


def test_ollama_has_its_seed(tree: Server) -> None:
    """SGLang passes it on under a name that its sampling parameters don't have."""
    options = {"num_predict": 12, "temperature": 1.0, "seed": 5}
    body = {"model": "tiny", "prompt": "x = 1", "stream": False, "options": options}
    texts = {tree.post("/api/generate", body).json()["response"] for _ in range(3)}
    assert len(texts) == 1


def test_a_session_starts_anew(tree: Server, prompts: list[str]) -> None:
    """``replace`` without a request: what the session held is gone."""
    session = tree.post("/open_session", {"capacity_of_str_len": 1000}).json()
    sampling = {"temperature": 0, "max_new_tokens": 8}
    asked = [(prompts[0], {}), (prompts[1], {}), (prompts[2], {"replace": True}), (prompts[3], {})]
    lengths = []
    for text, params in asked:
        body = {"text": text, "sampling_params": sampling, "session_params": {"id": session}}
        body["session_params"].update(params)
        answer = tree.post("/generate", body)
        assert answer.status_code == 200, answer.text
        lengths.append(answer.json()["meta_info"]["prompt_tokens"])
    assert lengths[2] == len(tree.tokenize(prompts[2]))
    assert tree.post("/close_session", {"session_id": session}).status_code == 200


@pytest.mark.parametrize(("path", "body"), NO_GROUP, ids=[path for path, _ in NO_GROUP])
def test_weight_groups(tree: Server, path: str, body: dict[str, Any]) -> None:
    answer = tree.post(path, body)
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize(
    ("path", "body"),
    [("/start_profile", {"output_dir": "/proc/none"}), ("/stop_profile", {})],
)
def test_profiles(tree: Server, path: str, body: dict[str, Any]) -> None:
    """Of a folder that can't be made, and of none in progress."""
    answer = tree.post(path, body)
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize("path", BARE)
def test_recording_without_a_recorder(tree: Server, path: str) -> None:
    answer = tree.post(path, {})
    assert answer.status_code == 400, answer.text
    assert "--expert-distribution-recorder-mode" in answer.text


def test_the_vocabulary_ends_where_the_config_says(tree: Server) -> None:
    size = json.loads((PAIR.target / "config.json").read_text())["vocab_size"]
    body = {"input_ids": [[1], [2, size - 1]], "sampling_params": LENGTH}
    assert tree.post("/generate", body).status_code == 200
    answer = tree.post("/generate", {**body, "input_ids": [[1], [2, size]]})
    assert answer.status_code == 400
    expected = f"prompt 1 of the batch: {size} is not a token id: they go from 0 to {size - 1}"
    assert expected in answer.text
