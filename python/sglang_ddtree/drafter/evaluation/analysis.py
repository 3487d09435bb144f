"""What a drafter would have saved on texts that its target wrote, without serving the two.

The target's text does not depend on what was drafted: greedy decoding gives the argmax text, and
where the target's token is drawn at every node the text is a plain sample. So the drafter runs once
with an anchor at every position of a finished text, and a decode step is a look-up: how far does
the text stay inside the tree?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sglang_ddtree.drafter.data.samples import Sample
from sglang_ddtree.drafter.evaluation.ngrams import PromptLookup, repeated_share
from sglang_ddtree.drafter.model.config import DrafterConfig
from sglang_ddtree.drafter.model.model import Drafter
from sglang_ddtree.drafter.objective.objective import Ends, block_inputs
from sglang_ddtree.tree.accept import accept
from sglang_ddtree.tree.candidates import Candidates
from sglang_ddtree.tree.grow import grow
from sglang_ddtree.tree.policy import GrowthPolicy

LOOKUP = "prompt look-up"
RANKS = 8
# Blocks of one drafter forward.
_BLOCKS = 64


@dataclass(frozen=True)
class Drafted:
    """A text, and what the drafter proposes after each of its positions.

    Attributes:
        tokens: int64 ``[n]``, prompt and answer.
        start: position of the first token that the target wrote; it comes from the prefill.
        candidates: of positions ``start .. n - 2``, one request each.
        following: int64 ``[n - 1 - start, B - 1]``, the tokens of the text there; -1 past its end.
    """

    tokens: Tensor
    start: int
    candidates: Candidates
    following: Tensor


@torch.no_grad()
def draft_everywhere(
    model: Drafter, ends: Ends, config: DrafterConfig, sample: Sample, topk: int
) -> Drafted:
    """The drafter's proposals at every position of a sample's answer."""
    tokens, start = sample.input_ids, int(sample.loss_mask.int().argmax())
    anchors = torch.arange(start, len(tokens) - 1)
    features = sample.hidden_states.float()[None]
    found: list[Candidates] = []
    for part in anchors.split(_BLOCKS):
        ids = block_inputs(tokens[part], config.block, config.mask_token_id)
        hidden = model(features, ends.embed(ids)[None], part[None])[0, :, 1:]
        drafted = Candidates.from_logits(hidden @ ends.head.T, topk)
        found.append(Candidates(ends.token_ids(drafted.tokens), drafted.log_probs))
    positions = anchors[:, None] + torch.arange(1, config.block)
    beyond = positions >= len(tokens)
    following = tokens[positions.clamp(max=len(tokens) - 1)].masked_fill(beyond, -1)
    merged = Candidates(
        torch.cat([part.tokens for part in found]), torch.cat([part.log_probs for part in found])
    )
    return Drafted(tokens, start, merged, following)


def accepted_lengths(drafted: Drafted, budget: int, spine: bool = True) -> Tensor:
    """Draft tokens accepted at each position, ``[n - 1 - start]``."""
    roots = drafted.tokens[drafted.start : -1]
    tree = grow(drafted.candidates, roots, GrowthPolicy(budget, spine))
    # The target puts the text's next token after every node that is on the text's path; what it
    # would put after the others does not matter, they are not accepted.
    after = torch.cat([drafted.following, torch.full((len(roots), 1), -1)], dim=1)
    return accept(tree, after.gather(1, tree.depth.long())).length


def count_steps(lengths: Sequence[int]) -> int:
    """Decode steps of a text, given what each of its positions would accept."""
    position = steps = 0
    while position < len(lengths):
        position += lengths[position] + 1
        steps += 1
    return steps


@dataclass
class Tally:
    """Sums over texts of one temperature.

    Attributes:
        hits: ``[B-1, ranks]`` positions whose token is among the so many likeliest.
        slots: ``[B-1, 1]`` positions that have a token.
    """

    texts: int = 0
    written: int = 0
    steps: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    repeated: float = 0.0
    hits: Any = 0
    slots: Any = 0

    def add(self, drafted: Drafted, budgets: Iterable[int]) -> None:
        """Count one text."""
        answer = drafted.tokens[drafted.start :].tolist()
        block = drafted.following.shape[1] + 1
        self.texts += 1
        self.written += len(answer) - 1
        self.repeated += repeated_share(answer)
        lookup = PromptLookup(drafted.tokens.tolist())
        self.steps[LOOKUP] += lookup.steps(drafted.start, block - 1)
        for budget in budgets:
            lengths = accepted_lengths(drafted, budget).tolist()
            self.steps[budget_name(budget, block)] += count_steps(lengths)
        ranked = drafted.candidates.tokens[..., :RANKS] == drafted.following[..., None]
        self.hits = self.hits + ranked.cumsum(-1).sum(0)
        self.slots = self.slots + (drafted.following >= 0).sum(0)[:, None]

    def result(self) -> dict[str, Any]:
        """Tokens per step by method, hit rates and repetition, for JSON."""
        rates = self.hits / self.slots.clamp(min=1)
        return {
            "texts": self.texts,
            "tokens": self.written,
            "repeated_share": round(self.repeated / self.texts, 4),
            "tokens_per_step": {
                name: round(self.written / steps, 4) for name, steps in self.steps.items()
            },
            # By position, then by how many of the likeliest are looked at.
            "hit_rates": [[round(x, 4) for x in row] for row in rates.tolist()],
        }


def budget_name(budget: int, block: int) -> str:
    return "chain" if budget == block - 1 else f"budget {budget}"
