"""What a drafter saves on finished texts, against decoding spelled out step by step."""

from __future__ import annotations

import pytest
import torch

from sglang_ddtree.drafter.data.samples import Sample, mask_of
from sglang_ddtree.drafter.evaluation.analysis import (
    LOOKUP,
    Drafted,
    Tally,
    accepted_lengths,
    count_steps,
    draft_everywhere,
)
from sglang_ddtree.drafter.evaluation.evaluate import report
from sglang_ddtree.drafter.model.config import DrafterConfig
from sglang_ddtree.drafter.model.layers import Shape
from sglang_ddtree.drafter.model.model import Drafter
from sglang_ddtree.drafter.objective.objective import Ends
from sglang_ddtree.tree.candidates import Candidates
from sglang_ddtree.tree.oracle import grow_oracle
from sglang_ddtree.tree.policy import GrowthPolicy

BLOCK, TOPK, START = 5, 3, 4


def drafted_text(seed: int, agreement: float) -> Drafted:
    """A random text whose tokens are often among random candidates."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 50, (30,), generator=generator)
    places = len(tokens) - 1 - START
    following = torch.full((places, BLOCK - 1), -1)
    for place in range(places):
        rest = tokens[START + place + 1 : START + place + BLOCK]
        following[place, : len(rest)] = rest
    ids = torch.stack(
        [
            torch.stack([torch.randperm(50, generator=generator)[:TOPK] for _ in range(BLOCK - 1)])
            for _ in range(places)
        ]
    )
    for place in range(places):
        for depth in range(BLOCK - 1):
            token = int(following[place, depth])
            if token in ids[place, depth].tolist() or token < 0:
                continue
            if torch.rand((), generator=generator) < agreement:
                rank = max(0, int(torch.randint(-TOPK, TOPK, (), generator=generator)))
                ids[place, depth, rank] = token
    logits = torch.randn(places, BLOCK - 1, TOPK, generator=generator).sort(-1, descending=True)
    return Drafted(tokens, START, Candidates(ids, logits.values.log_softmax(-1)), following)


def accepted_by_walking(drafted: Drafted, place: int, budget: int) -> int:
    """Oracle: the heap's tree, and a walk from the root."""
    tokens, log_probs = drafted.candidates.tokens, drafted.candidates.log_probs
    root = int(drafted.tokens[START + place])
    tree = grow_oracle(
        tokens[place].tolist(), log_probs[place].tolist(), root, GrowthPolicy(budget)
    )
    node = depth = 0
    while depth < BLOCK - 1:
        wanted = int(drafted.following[place, depth])
        found = [i for i, n in enumerate(tree) if n.parent == node and n.token == wanted]
        if not found:
            break
        node, depth = found[0], depth + 1
    return depth


@pytest.mark.parametrize("budget", [BLOCK - 1, 9, 20])
def test_accepted_lengths_are_those_of_a_walk(budget: int) -> None:
    drafted = drafted_text(budget, 0.8)
    lengths = accepted_lengths(drafted, budget).tolist()
    expected = [accepted_by_walking(drafted, place, budget) for place in range(len(lengths))]
    assert lengths == expected
    assert max(lengths) > 1


def test_steps_of_a_known_text() -> None:
    assert count_steps([0, 0, 0]) == 3
    assert count_steps([2, 9, 9, 1, 9]) == 2
    assert count_steps([9]) == 1
    assert count_steps([]) == 0


def test_tally() -> None:
    tally = Tally()
    for seed in range(3):
        tally.add(drafted_text(seed, 0.9), (BLOCK - 1, 12))
    result = tally.result()
    steps = result["tokens_per_step"]
    assert result["tokens"] == 3 * 25
    assert steps["budget 12"] > steps["chain"] > 1
    assert LOOKUP in steps
    rates = torch.tensor(result["hit_rates"])
    assert rates.shape == (BLOCK - 1, TOPK)
    assert (rates.diff(dim=-1) >= 0).all()
    text = report({"0": result})
    assert "budget 12" in text
    assert "top 3" in text


def test_a_drafter_is_asked_at_every_position() -> None:
    shape = Shape(16, 24, 1, 2, 1, 8, 50, 1e4, 1e-6, 64)
    config = DrafterConfig(shape, BLOCK, (0,), 49, (None,))
    model, table = Drafter(config), torch.randn(50, 16)
    states = torch.randn(12, 16)
    sample = Sample(torch.randint(0, 50, (12,)), mask_of(12, START), states)
    vocabulary = torch.tensor([3, 10, 20, 30, 40])
    drafted = draft_everywhere(model, Ends(table, table, 1.0, vocabulary), config, sample, TOPK)
    assert drafted.candidates.tokens.shape == (7, BLOCK - 1, TOPK)
    assert set(drafted.candidates.tokens.flatten().tolist()) <= set(vocabulary.tolist())
    assert drafted.following[0].tolist() == sample.input_ids[5:9].tolist()
    assert drafted.following[-1].tolist() == [int(sample.input_ids[-1]), -1, -1, -1]
    # The proposal at one position, alone.
    ids = torch.tensor([[int(sample.input_ids[6]), 49, 49, 49, 49]])
    hidden = model(states[None], table[ids][None], torch.tensor([[6]]))[0, 0, 1:]
    best = vocabulary[(hidden @ table[vocabulary].T).argmax(-1)]
    assert drafted.candidates.tokens[2, :, 0].tolist() == best.tolist()
