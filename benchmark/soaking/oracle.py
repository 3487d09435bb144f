"""Plain decoding's answer to a call, and whether another answer is the same."""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import Any

from common.equality import NEAR_TIE, Reference, Verdict

from soaking.answer import Answer
from soaking.client import Client
from soaking.mix import Call

# Kinds whose greedy answers have one right value.
COMPARED = frozenset(
    ("generate", "long", "several", "batch", "completion", "chat", "ollama", "session")
)


class Oracle:
    """A server without speculation, of the same build.

    Every question is asked once and whole: a stream is compared with what is not streamed.

    Attributes:
        plain: asks that server; another one in every round.
    """

    plain: Client

    def __init__(self) -> None:
        self._answers: dict[str, Answer] = {}

    async def compare(self, call: Call, answer: Answer) -> tuple[Verdict, str]:
        """Verdict on an answer, and in words how it differs."""
        expected = await self._expected(call)
        if expected.error:
            return Verdict.DIFFERENT, f"plain decoding: {expected.error}"
        if answer.texts or expected.texts:
            if (answer.texts, self._reason(answer)) == (expected.texts, self._reason(expected)):
                return Verdict.EQUAL, ""
            if await self._has_near_tie(call):
                return Verdict.NEAR_TIE, ""
            return Verdict.DIFFERENT, f"{answer.texts}, plain decoding {expected.texts}"
        for one, other in zip_longest(answer.outputs, expected.outputs):
            verdict, words = _compare_outputs(one, other)
            if verdict is not Verdict.EQUAL:
                return verdict, words
        return Verdict.EQUAL, ""

    @staticmethod
    def _reason(answer: Answer) -> list[str]:
        return [reason for reason in answer.reasons if reason]  # Ollama's stream names none

    async def _expected(self, call: Call) -> Answer:
        wanted = {"return_logprob": True, "top_logprobs_num": 2}
        if call.path != "/generate":
            wanted = {}
        body = {**call.body, **wanted, "stream": False}
        if call.kind in ("completion", "chat"):
            body.pop("stream_options", None)
        turns = tuple({**turn, **wanted} for turn in call.turns)
        key = json.dumps([call.path, body, turns], sort_keys=True)
        if key not in self._answers:
            asked = Call(call.number, call.kind, call.path, body, turns=turns)
            self._answers[key] = await self.plain.perform(asked)
        return self._answers[key]

    async def _has_near_tie(self, call: Call) -> bool:
        """Whether anywhere in the tokens of a text two were too close to call."""
        fields = {**call.body, **call.body.get("options", {})}
        length = fields.get("max_tokens", fields.get("num_predict"))
        params = {"temperature": 0, "max_new_tokens": length}
        body = {"text": call.text, "sampling_params": params}
        answer = await self._expected(Call(call.number, "generate", body=body))
        return any(gap < NEAR_TIE for output in answer.outputs for gap in _gaps(output))


def _gaps(output: dict[str, Any]) -> list[float]:
    """Best minus second best log-probability at each position."""
    best_two = output["meta_info"]["output_top_logprobs"]
    return [best[0] - second[0] for best, second in best_two]


def _compare_outputs(
    one: dict[str, Any] | None, other: dict[str, Any] | None
) -> tuple[Verdict, str]:
    """One ``/generate`` answer with plain decoding's, which holds the two best tokens."""
    if one is None or other is None:
        return Verdict.DIFFERENT, "not as many outputs as plain decoding"
    runners_up = [second[1] for _, second in other["meta_info"]["output_top_logprobs"]]
    reference = Reference("", other["output_ids"], _gaps(other), runners_up)
    verdict, same = reference.compare(one["output_ids"])
    if verdict is Verdict.DIFFERENT:
        return verdict, f"{one['output_ids']} is not {reference.tokens} after {same} tokens"
    if verdict is Verdict.NEAR_TIE:
        return verdict, ""
    for key in ("finish_reason", "completion_tokens", "prompt_tokens"):
        ours, theirs = one["meta_info"][key], other["meta_info"][key]
        if ours != theirs:
            return Verdict.DIFFERENT, f"{key} {ours!r} is not plain decoding's {theirs!r}"
    if one["text"] != other["text"]:
        return Verdict.DIFFERENT, f"{one['text']!r} is not plain decoding's {other['text']!r}"
    return verdict, ""
