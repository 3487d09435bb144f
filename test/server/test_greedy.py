"""Greedy answers equal plain decoding's, token for token."""

from __future__ import annotations

import pytest
from common.server import Server

from server.client import load
from server.configurations import CONTEXT_LENGTH
from server.oracle import Oracle
from server.reference import ReferenceTarget

TREES = pytest.mark.parametrize("tree", ["narrow", "square", "wide", "cramped"], indirect=True)
FREE = {"max_new_tokens": 96, "ignore_eos": True}


def test_plain_decoding_agrees_with_transformers(
    oracle: Oracle, reference: ReferenceTarget, prompts: list[str]
) -> None:
    """The oracle of the other tests, against one that shares no code with it."""
    for text in prompts:
        mismatch = reference.greedy_mismatch(reference.encode(text), oracle.tokens(text))
        assert mismatch is None, f"{mismatch}, after {text!r}"


@TREES
def test_cold_and_warm_prefix(tree: Server, oracle: Oracle, prompts: list[str]) -> None:
    tree.flush_cache()
    page_size = tree.info()["page_size"]
    keeps_all = load(tree)["max_total_num_tokens"] > 10_000
    for warm in (False, True):
        answers = tree.generate_all(prompts, concurrency=4, **FREE)
        for text, answer in zip(prompts, answers, strict=True):
            oracle.check_tokens(text, answer["output_ids"], oracle.tokens(text, 96))
        metas = [answer["meta_info"] for answer in answers]
        if warm and keeps_all:
            # All but the last token of a prompt, in whole pages.
            assert all(
                meta["cached_tokens"] >= (meta["prompt_tokens"] - 1) // page_size * page_size
                for meta in metas
            )


@TREES
def test_tokens_that_were_accepted_can_be_reused(
    tree: Server, oracle: Oracle, reference: ReferenceTarget, prompts: list[str]
) -> None:
    """An answer becomes the prefix of the next request: its KV must be the accepted path's."""
    tree.flush_cache()
    page_size = tree.info()["page_size"]
    for text in prompts[:4]:
        tree.generate(text, **FREE)
        expected = oracle.tokens(text, 96)
        for kept in (33, 64):
            ids = [*reference.encode(text), *expected[:kept]]
            params = {"temperature": 0, "max_new_tokens": 96 - kept, "ignore_eos": True}
            answer = tree.post("/generate", {"input_ids": ids, "sampling_params": params}).json()
            oracle.check_tokens(text, [*expected[:kept], *answer["output_ids"]], expected)
            reused = answer["meta_info"]["cached_tokens"]
            assert reused >= (len(ids) - 1) // page_size * page_size


@TREES
def test_clients_with_different_lengths_and_parameters(
    tree: Server, oracle: Oracle, prompts: list[str]
) -> None:
    """Greedy requests among sampled ones, each of its own length: nobody disturbs a neighbour."""
    texts = [prompts[i % len(prompts)] for i in range(16)]
    params = [
        {"temperature": 0, "max_new_tokens": 5 + 7 * i, "ignore_eos": True}
        if i % 3
        else {"temperature": 0.8, "top_k": 20, "max_new_tokens": 40 - i, "ignore_eos": True}
        for i in range(16)
    ]
    answers = tree.post("/generate", {"text": texts, "sampling_params": params}).json()
    for text, wanted, answer in zip(texts, params, answers, strict=True):
        assert answer["meta_info"]["completion_tokens"] == wanted["max_new_tokens"]
        if wanted["temperature"] == 0:
            expected = oracle.tokens(text, wanted["max_new_tokens"])
            oracle.check_tokens(text, answer["output_ids"], expected)


@TREES
def test_up_to_the_last_position_of_the_context(
    tree: Server, oracle: Oracle, reference: ReferenceTarget, prompts: list[str]
) -> None:
    """The tree is wider than what is left, for neighbours at the limit at once."""
    text = prompts[4]
    ids = reference.encode(text)
    ids += oracle.tokens(text, CONTEXT_LENGTH - len(ids) - 2)
    rooms = (7, 8, 9, 10, 17, 40)  # SGLang refuses prompts that leave less
    bodies = [
        {
            "input_ids": ids[: CONTEXT_LENGTH - room],
            "sampling_params": {"temperature": 0, "max_new_tokens": room, "ignore_eos": True},
        }
        for room in rooms
    ]
    together = {key: [body[key] for body in bodies] for key in bodies[0]}
    for body, answer in zip(bodies, tree.post("/generate", together).json(), strict=True):
        expected = oracle.post("/generate", body)
        oracle.check_tokens(text, answer["output_ids"], expected["output_ids"])
        assert answer["meta_info"]["finish_reason"] == expected["meta_info"]["finish_reason"]
        assert answer["meta_info"]["completion_tokens"] >= 1
