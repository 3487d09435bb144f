"""What users put into requests, answered as plain decoding answers it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from common.server import Server

from server.client import events, is_idle, load, metric, steps, stream
from server.configurations import CONTEXT_LENGTH, PAIR
from server.oracle import LENGTH, Oracle
from server.reference import ReferenceTarget
from waiting import wait_until

pytestmark = pytest.mark.parametrize("tree", ["wide"], indirect=True)
EOS = 2


def inside_a_path(taken: list[list[int]], wanted: int | None = None) -> int:
    """Index of an output token with accepted tokens of the same step on both sides.

    Without ``wanted``, of a token that the output does not hold before.
    """
    output = [token for step in taken for token in step]
    start = 0
    for step in taken:
        for i in range(start + 1, start + len(step) - 1):
            if wanted == output[i] or (wanted is None and output.index(output[i]) == i > 8):
                return i
        start += len(step)
    raise LookupError("no step accepted such a path")


def check_like_plain(oracle: Oracle, text: str, answer: dict[str, Any], **sampling: Any) -> None:
    """Same tokens, same text, same reason to end."""
    expected = oracle.generate(text, **sampling)
    oracle.check_tokens(text, answer["output_ids"], expected["output_ids"])
    assert answer["text"] == expected["text"]
    for key in ("finish_reason", "completion_tokens", "prompt_tokens"):
        assert answer["meta_info"][key] == expected["meta_info"][key]


@pytest.fixture(scope="module")
def paths(servers: Any, prompts: list[str]) -> dict[str, list[list[int]]]:
    """For each prompt, what every step of an unstopped greedy answer adds."""
    tree = servers.get("wide")
    return {text: steps(tree, text, max_new_tokens=LENGTH, ignore_eos=True) for text in prompts}


def test_steps_accept_paths(tree: Server, paths: dict[str, list[list[int]]]) -> None:
    """What the tests below stand on: the drafter is worth something."""
    lengths = [len(step) for taken in paths.values() for step in taken[1:]]
    assert sum(lengths) / len(lengths) > 2
    assert max(lengths) > 8


@pytest.mark.parametrize("count", range(1, 21))
def test_every_length(tree: Server, oracle: Oracle, prompts: list[str], count: int) -> None:
    """The limit falls on every place in a path."""
    for text in prompts[:3]:
        answer = tree.generate(text, max_new_tokens=count, ignore_eos=True)
        oracle.check_tokens(text, answer["output_ids"], oracle.tokens(text, count))
        assert answer["meta_info"]["completion_tokens"] == count
        assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": count}


def test_no_new_token(tree: Server, oracle: Oracle, prompts: list[str]) -> None:
    answer = tree.generate(prompts[0], max_new_tokens=0)
    check_like_plain(oracle, prompts[0], answer, max_new_tokens=0)


def test_stop_token_inside_a_path(
    tree: Server, oracle: Oracle, paths: dict[str, list[list[int]]]
) -> None:
    found = 0
    for text, taken in paths.items():
        try:
            index = inside_a_path(taken)
        except LookupError:
            continue
        token = oracle.tokens(text)[index]
        for stop in ([token], [token, EOS, 5]):
            sampling = {"stop_token_ids": stop, "ignore_eos": False}
            answer = tree.generate(text, **sampling)
            check_like_plain(oracle, text, answer, **sampling)
            assert answer["meta_info"]["completion_tokens"] <= index + 1
        found += 1
    assert found >= 3


def test_eos_inside_a_path(
    tree: Server, oracle: Oracle, reference: ReferenceTarget, prompts: list[str]
) -> None:
    """Chats end in EOS: some end must be drafted together with what would follow it."""
    found = 0
    for record in PAIR.prompts():
        text = record["prompt"]
        if record["kind"] != "chat" or len(reference.encode(text)) > CONTEXT_LENGTH - 2 * LENGTH:
            continue
        output = oracle.generate(text, max_new_tokens=LENGTH)["output_ids"]
        if EOS not in output:
            continue
        taken = steps(tree, text, max_new_tokens=min(LENGTH, len(output) + 16), ignore_eos=True)
        answer = tree.generate(text)
        check_like_plain(oracle, text, answer)
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"
        ignoring = tree.generate(text, ignore_eos=True, max_new_tokens=len(output) + 8)
        assert ignoring["meta_info"]["completion_tokens"] == len(output) + 8
        try:
            found += inside_a_path(taken, wanted=EOS) == len(output) - 1
        except LookupError:
            continue
        if found == 2:
            return
    assert found, "no chat ended inside a path"


@pytest.mark.parametrize("keep", [False, True])
def test_stop_string_inside_a_path(
    tree: Server,
    oracle: Oracle,
    reference: ReferenceTarget,
    paths: dict[str, list[list[int]]],
    keep: bool,
) -> None:
    """A string that spans two tokens of one step, and ends before the step does."""
    found = 0
    for text, taken in paths.items():
        try:
            index = inside_a_path(taken)
        except LookupError:
            continue
        output = oracle.tokens(text)
        before = reference.decode(output[: index - 1])
        whole = reference.decode(output[: index + 1])
        string = whole[len(before) :][-6:]
        if not string.strip() or string in before:
            continue
        for stop in (string, ["no such text", string]):
            sampling = {"stop": stop, "no_stop_trim": keep}
            answer = tree.generate(text, **sampling)
            check_like_plain(oracle, text, answer, **sampling)
            assert answer["meta_info"]["finish_reason"]["type"] == "stop"
        found += 1
    assert found >= 2


def test_several_answers_are_drawn_independently(tree: Server, prompts: list[str]) -> None:
    params = {"temperature": 1.0, "n": 6, "max_new_tokens": 48, "ignore_eos": True}
    body = {"text": prompts[4], "sampling_params": params}
    answers = tree.post("/generate", body).json()
    assert len(answers) == 6
    assert all(answer["meta_info"]["completion_tokens"] == 48 for answer in answers)
    assert len({tuple(answer["output_ids"]) for answer in answers}) > 1


def test_streaming(tree: Server, oracle: Oracle, prompts: list[str]) -> None:
    """Several tokens a chunk; each chunk extends the one before; the last is the answer."""
    for text in prompts[:3]:
        chunks = stream(tree, text, max_new_tokens=96, ignore_eos=True)
        for earlier, later in pairwise(chunks):
            assert later["text"].startswith(earlier["text"].removesuffix("\ufffd"))
            assert later["output_ids"][: len(earlier["output_ids"])] == earlier["output_ids"]
        oracle.check_tokens(text, chunks[-1]["output_ids"], oracle.tokens(text, 96))
        assert chunks[-1]["text"] == tree.generate(text, max_new_tokens=96, ignore_eos=True)["text"]
        assert len(chunks) < 90, "no chunk held several tokens"


def test_chat_completions(tree: Server, oracle: Oracle) -> None:
    records = [record for record in PAIR.prompts() if record["kind"] == "chat"][:4]
    for record in records:
        body = {
            "model": "tiny",
            "messages": record["messages"],
            "temperature": 0,
            "max_tokens": 80,
        }
        expected = oracle.post("/v1/chat/completions", body)
        answer = tree.post("/v1/chat/completions", body).json()
        assert answer["choices"] == expected["choices"]
        assert answer["usage"] == expected["usage"]

        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with tree.post("/v1/chat/completions", asked, stream=True) as response:
            chunks = list(events(response))
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        text = "".join(delta.get("content") or "" for delta in deltas)
        assert text == expected["choices"][0]["message"]["content"]
        usage = next(chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage"))
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert usage[key] == expected["usage"][key]


def test_completions_with_stop_and_echoed_count(tree: Server, oracle: Oracle) -> None:
    text = PAIR.prompts()[40]["prompt"]
    body = {"model": "tiny", "prompt": text, "temperature": 0, "max_tokens": 90, "stop": ["\n\n"]}
    answer, expected = (
        tree.post("/v1/completions", body).json(),
        oracle.post("/v1/completions", body),
    )
    assert answer["choices"] == expected["choices"]
    assert answer["usage"] == expected["usage"]


def test_client_that_goes_away_frees_its_slots(tree: Server, prompts: list[str]) -> None:
    assert wait_until(lambda: is_idle(tree))
    body = {
        "text": prompts[0],
        "stream": True,
        "sampling_params": {"temperature": 1.0, "max_new_tokens": 450, "ignore_eos": True},
    }
    aborted = metric(tree, "sglang:num_aborted_requests_total")
    for _ in range(3):
        with tree.post("/generate", body, stream=True) as response:
            received = events(response)
            next(received)
            assert next(received)["meta_info"]["finish_reason"] is None
    assert wait_until(lambda: metric(tree, "sglang:num_aborted_requests_total") == aborted + 3)
    assert wait_until(lambda: is_idle(tree)), load(tree)


def test_speculation_figures(tree: Server, prompts: list[str]) -> None:
    """Of one request: all say the same about the same steps."""
    for text in prompts[:4]:
        taken = steps(tree, text, max_new_tokens=100, ignore_eos=True)
        meta = tree.generate(text, max_new_tokens=100, ignore_eos=True)["meta_info"]
        verified = meta["spec_verify_ct"]
        assert verified == len(taken) - 1
        assert meta["spec_accept_length"] == pytest.approx(100 / verified)
        histogram = meta["spec_correct_drafts_histogram"]
        assert sum(histogram) == verified
        drafts = sum(length * count for length, count in enumerate(histogram))
        assert drafts == meta["spec_num_correct_drafts"]
        # The prefill gives one token, each step its drafts and one more; the limit cuts the last.
        assert 100 <= 1 + drafts + verified < 100 + PAIR.block_size
        assert len(histogram) <= PAIR.block_size
        proposed = meta["spec_num_proposed_drafts"]
        assert proposed == 63 * verified
        assert meta["spec_accept_rate"] == pytest.approx(drafts / proposed)


def test_server_figures(tree: Server, prompts: list[str]) -> None:
    """Of the server: ``/server_info`` and Prometheus know the accepted length."""
    tree.generate_all(prompts, concurrency=4, max_new_tokens=64, ignore_eos=True)
    (state,) = tree.info()["internal_states"]
    assert 1 < state["avg_spec_accept_length"] < PAIR.block_size
    assert 1 < load(tree)["speculative"]["accept_length"] < PAIR.block_size
    gauge = metric(tree, "sglang:spec_accept_length")
    assert 1 < gauge <= PAIR.block_size
