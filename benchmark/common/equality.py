"""Is an output what plain decoding writes?

Greedy speculative decoding must give the tokens of plain decoding. In floating point a batch of
another shape may turn an argmax over where the two best logits are (almost) equal; such a position,
and only such, excuses a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from common.server import Server

# Two top logits nearer than this are a tie in float32.
NEAR_TIE = 1e-4


class Verdict(Enum):
    """How one continuation compares with plain decoding."""

    EQUAL = "equal"
    NEAR_TIE = "near tie"
    DIFFERENT = "different"


@dataclass(frozen=True)
class Reference:
    """Plain decoding's continuation of one prompt.

    Attributes:
        tokens: greedy continuation.
        gaps: best minus second best logit at each position.
        runners_up: the token of the second best logit at each position.
    """

    prompt: str
    tokens: list[int]
    gaps: list[float]
    runners_up: list[int]

    @property
    def has_near_tie(self) -> bool:
        return min(self.gaps) < NEAR_TIE

    def compare(self, tokens: Sequence[int]) -> tuple[Verdict, int]:
        """Verdict on ``tokens``, and how many of them agree before the first difference.

        After a difference the two texts are about different prefixes, so nothing is compared there.
        """
        same, shared = 0, min(len(self.tokens), len(tokens))
        while same < shared and self.tokens[same] == tokens[same]:
            same += 1
        if same == len(self.tokens) == len(tokens):
            return Verdict.EQUAL, same
        if same < shared and self.gaps[same] < NEAR_TIE and tokens[same] == self.runners_up[same]:
            return Verdict.NEAR_TIE, same
        return Verdict.DIFFERENT, same


@dataclass
class Tally:
    """Comparisons, summed up."""

    continuations: int = 0
    tokens: int = 0
    excused: int = 0
    differing: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.continuations + other.continuations,
            self.tokens + other.tokens,
            self.excused + other.excused,
            self.differing + other.differing,
        )


def tally(references: Iterable[Reference], outputs: Iterable[Sequence[int]]) -> Tally:
    """Compare outputs with their references; ``tokens`` counts those before first differences."""
    total = Tally()
    for reference, tokens in zip(references, outputs, strict=True):
        verdict, same = reference.compare(tokens)
        excused, differing = verdict is Verdict.NEAR_TIE, verdict is Verdict.DIFFERENT
        total += Tally(1, same, int(excused), int(differing))
    return total


def references(
    server: Server, prompts: Sequence[str], max_new_tokens: int, concurrency: int = 1
) -> list[Reference]:
    """Continue every prompt greedily on a server without speculation, EOS ignored."""
    answers = server.generate_all(
        prompts,
        concurrency,
        request={"return_logprob": True, "top_logprobs_num": 2},
        max_new_tokens=max_new_tokens,
        ignore_eos=True,
    )
    found = []
    for prompt, answer in zip(prompts, answers, strict=True):
        best_two = answer["meta_info"]["output_top_logprobs"]
        gaps = [best[0] - second[0] for best, second in best_two]
        runners_up = [second[1] for _, second in best_two]
        found.append(Reference(prompt, answer["output_ids"], gaps, runners_up))
    return found


def accept_length(answers: Iterable[dict]) -> float:
    """Tokens output per decode step; the first token of an answer comes from its prefill.

    0 where the server does not speculate. SGLang's own ``spec_accept_length`` counts the prefill's
    token too (srt/managers/tokenizer_manager.py:3165@0.5.23), so it is a little larger.
    """
    infos = [answer["meta_info"] for answer in answers]
    steps = sum(info.get("spec_verify_ct", 0) for info in infos)
    return sum(info["completion_tokens"] - 1 for info in infos) / steps if steps else 0.0
