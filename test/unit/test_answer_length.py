"""Answers that a step overshot: as long, and with as much reasoning, as token by token."""

from __future__ import annotations

from typing import Any

import pytest

from server.asking import answers_of

SCRIPT = """
import itertools, json
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.runtime_context import get_context, get_spec
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang_ddtree.engine.answers import length as answer_length

START, END, STOP = [7, 8], [9, 9], 3

def counted(answer, steps, limit, self_opened):
    params = SamplingParams(max_new_tokens=limit, stop_token_ids=[STOP])
    params.normalize(None)
    req = Req("x", "", [1, 2], params, vocab_size=100)
    for step in steps:
        tokens, answer = answer[:step], answer[step:]
        req.output_ids.extend(tokens)
        if self_opened:
            req.update_self_opened_reasoning_tokens(tokens, START, END)
        else:
            req.update_reasoning_tokens(tokens, END)
        req.update_finish_state(len(tokens))
        if req.finished():
            break
    assert req.finished()
    return req.reasoning_tokens, len(req.output_ids_through_stop)

answer_length.register()
HookRegistry.apply_hooks()
answers = [
    [5] * 40,
    [5] * 6 + [STOP] + [5] * 40,
    [5] * 6 + END + [5] * 5 + [STOP] + [5] * 40,
    START + [5] * 6 + END + [5] * 40,
    START + [5] * 40,
    [7, STOP] + [8] * 40,
]
cases = []
spec = {"speculative_algorithm": "DDTREE"}
with get_context().override_server_args(), get_spec().override(**spec):
    for answer, limit, own in itertools.product(answers, (1, 2, 5, 9, 20), (False, True)):
        got = [counted(answer, [1] + [width] * 40, limit, own) for width in (1, 4, 16, 30)]
        cases.append(got)

    def aborted(limit, written):
        params = SamplingParams(max_new_tokens=limit)
        params.normalize(None)
        req = Req("x", "", [1, 2], params, vocab_size=100)
        req.output_ids.extend([5] * written)
        req.to_finish = FINISH_ABORT("gone")
        req.update_finish_state(written)
        return len(req.output_ids_through_stop)

    lengths = itertools.product((3, 8), (2, 8, 9))
    ends = {f"{limit} {written}": aborted(limit, written) for limit, written in lengths}
print(json.dumps({"cases": cases, "aborted": ends}))
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """What the hook does, in a process of its own."""
    return answers_of(SCRIPT, None)


def test_reasoning_as_token_by_token(answers: dict[str, Any]) -> None:
    cases = answers["cases"]
    assert any(count not in (0, length) for (count, length), *_ in cases)
    for plain, *trees in cases:
        assert all(tree == plain for tree in trees), (plain, trees)


def test_aborted_answers_are_no_longer_than_asked_for(answers: dict[str, Any]) -> None:
    for case, length in answers["aborted"].items():
        limit, written = map(int, case.split())
        assert length == min(limit, written), case
