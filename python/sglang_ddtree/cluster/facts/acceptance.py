"""Tokens that a step commits, by budget: measured curves and an assumed one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from sglang_ddtree.cluster.facts.models import ModelFacts


@dataclass(frozen=True)
class AcceptanceCurve:
    """Mean tokens a step, the bonus token included.

    points: (budget, tokens), ascending. Between them, and from one token at budget 0, tokens grow
    with log(budget + 1); beyond the last they stay.
    """

    points: tuple[tuple[int, float], ...]
    source: str
    measured: bool

    def __post_init__(self) -> None:
        budgets = [budget for budget, _ in self.points]
        if not budgets or budgets != sorted(set(budgets)) or budgets[0] < 1:
            raise ValueError(f"{self.source}: budgets must ascend from at least 1: {budgets}")

    def tokens(self, budget: int) -> float:
        """Tokens a step at a budget; 1 at budget 0, which is plain decoding."""
        points = ((0, 1.0), *self.points)
        if budget >= points[-1][0]:
            return points[-1][1]
        left, right = next(pair for pair in pairwise(points) if budget <= pair[1][0])
        share = math.log((budget + 1) / (left[0] + 1)) / math.log((right[0] + 1) / (left[0] + 1))
        return left[1] + share * (right[1] - left[1])


MATH = AcceptanceCurve(
    ((15, 7.79), (16, 8.6), (32, 9.25), (64, 9.75), (128, 10.2), (256, 10.4), (512, 10.7)),
    "DDTree paper, Qwen3-8B, MATH-500, greedy (read off its figure)",
    measured=True,
)
HYBRID_CODE = AcceptanceCurve(
    ((18, 7.0),), "Lucebox, Qwen3.6-27B Q5, HumanEval: about 7, flat from budget 18", measured=True
)
CHAT = AcceptanceCurve(
    ((15, 4.38), (256, 6.70)),
    "chat as Qwen3-8B on MT-Bench in the DDTree paper, its best budget taken as 256",
    measured=False,
)


def default_curve(model: ModelFacts) -> AcceptanceCurve:
    """A curve measured for the target where there is one, the assumed chat curve otherwise."""
    return {"qwen3-8b": MATH, "qwen3.6-27b": HYBRID_CODE}.get(model.name, CHAT)
