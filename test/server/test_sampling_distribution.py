"""Draws of a tree server against the exact distribution of the target.

The number of draws is ``SGLANG_DDTREE_DRAWS`` (20,000 shows what a release must show; the default
keeps the suite short).
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from common.server import Server
from scipy.stats import chisquare
from torch import Tensor

from server.oracle import Oracle
from server.reference import ReferenceTarget

pytestmark = pytest.mark.parametrize("tree", ["square"], indirect=True)

DRAWS = int(os.environ.get("SGLANG_DDTREE_DRAWS", "4000"))
A_REQUEST = 48
SIGNIFICANCE = 0.001
SMALLEST_CELL = 5.0

Settings = dict[str, float]
SETTINGS: dict[str, Settings] = {
    "temperature": {"temperature": 1.0},
    "top-k": {"temperature": 1.0, "top_k": 3},
    "top-p": {"temperature": 1.2, "top_p": 0.8},
    "min-p": {"temperature": 1.3, "min_p": 0.2},
}


@dataclass(frozen=True)
class Place:
    """A prompt whose first output token is all but certain: the two after it come from trees."""

    prompt: list[int]
    first: int


@pytest.fixture(scope="module")
def place(oracle: Oracle, reference: ReferenceTarget, prompts: list[str]) -> Place:
    """Where two uncertain tokens follow a certain one, among greedy answers."""
    best, chosen = 0.0, None
    for text in prompts[:8]:
        ids = [*reference.encode(text), *oracle.tokens(text, 96)]
        probs = reference.logits([ids])[0].softmax(-1)
        entropy = -(probs * probs.clamp(min=1e-30).log()).sum(-1)
        certain = probs.max(-1).values
        start = len(reference.encode(text))
        for i in range(start, len(ids) - 3):
            # Capped: a handful of likely tokens each, so that cells are full.
            score = min(float(entropy[i + 1]), 1.5) * min(float(entropy[i + 2]), 1.5)
            if certain[i] > 0.97 and score > best:
                best, chosen = score, Place(ids[: i + 1], ids[i + 1])
    assert chosen is not None
    assert best > 0.5
    return chosen


def exact(logits: Tensor, settings: Settings) -> Tensor:
    """float64 [V]: the distribution that a request's parameters ask for.

    Filters apply in SGLang's order, each to what the others left of the same sorted list; top-p
    keeps the token that crosses the threshold (srt/layers/sampler.py:821@0.5.23).
    """
    probs = (logits.double() / settings["temperature"]).softmax(-1)
    ranked, order = probs.sort(descending=True)
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if "top_k" in settings:
        keep[int(settings["top_k"]) :] = False
    if "top_p" in settings:
        keep &= ranked.cumsum(0) - ranked <= settings["top_p"]
    if "min_p" in settings:
        keep &= ranked >= ranked[0] * settings["min_p"]
    kept = torch.zeros_like(probs).scatter(0, order, ranked * keep)
    return kept / kept.sum()


def draw(tree: Server, place: Place, settings: Settings) -> tuple[list[tuple[int, int]], float]:
    """The second and third output token of many answers that begin alike.

    Returns them and the share of answers whose two tokens came from a single tree.
    """
    params = {**settings, "n": A_REQUEST, "max_new_tokens": 3, "ignore_eos": True}
    body = {"input_ids": place.prompt, "sampling_params": params}
    pairs: list[tuple[int, int]] = []
    single = 0
    while len(pairs) < DRAWS:
        answers: list[dict[str, Any]] = tree.post("/generate", body).json()
        for answer in answers:
            first, *pair = answer["output_ids"]
            if first == place.first:
                pairs.append((pair[0], pair[1]))
                single += answer["meta_info"]["spec_verify_ct"] == 1
    return pairs, single / len(pairs)


def p_value(observed: Counter[Any], expected: dict[Any, float], draws: int) -> float:
    """Chi-square over the cells that hold enough, all others pooled into one."""
    cells = {cell: p * draws for cell, p in expected.items() if p * draws >= SMALLEST_CELL}
    rest = draws - sum(cells.values())
    seen = [observed[cell] for cell in cells]
    counts, wanted = [*seen, draws - sum(seen)], [*cells.values(), rest]
    if rest < SMALLEST_CELL:
        # Too little for a cell of its own: into the smallest.
        smallest = min(range(len(cells)), key=lambda i: wanted[i])
        wanted[smallest] += wanted.pop()
        counts[smallest] += counts.pop()
    assert len(counts) > 1
    return float(chisquare(counts, wanted).pvalue)


@pytest.mark.parametrize("setting", SETTINGS)
def test_draws_have_the_targets_distribution(
    tree: Server, reference: ReferenceTarget, place: Place, setting: str
) -> None:
    settings = SETTINGS[setting]
    context = [*place.prompt, place.first]
    one = exact(reference.logits([context])[0, -1], settings)
    likely = [int(token) for token in one.nonzero().flatten() if one[token] * DRAWS > 0.5]
    after = reference.logits([[*context, token] for token in likely])[:, -1]
    two = {
        (token, int(follower)): float(one[token] * p[follower])
        for token, p in zip(likely, (exact(row, settings) for row in after), strict=True)
        for follower in p.nonzero().flatten()
    }

    pairs, from_one_tree = draw(tree, place, settings)
    assert from_one_tree > 0.1, "trees do not reach the second token"
    impossible = [token for token, _ in pairs if one[token] == 0]
    assert not impossible
    # Eight tests in all: the family fails by chance as rarely as one would.
    threshold = SIGNIFICANCE / (2 * len(SETTINGS))
    single = Counter(token for token, _ in pairs)
    alone = {token: float(p) for token, p in enumerate(one) if p > 0}
    assert p_value(single, alone, len(pairs)) > threshold
    assert p_value(Counter(pairs), two, len(pairs)) > threshold


def test_the_check_would_notice(place: Place, reference: ReferenceTarget, tree: Server) -> None:
    """A server that drew at a slightly other temperature would fail."""
    logits = reference.logits([[*place.prompt, place.first]])[0, -1]
    generator = torch.Generator().manual_seed(0)
    wrong = exact(logits, {"temperature": 1.25})
    drawn = torch.multinomial(wrong, DRAWS, replacement=True, generator=generator)
    right = {token: float(p) for token, p in enumerate(exact(logits, {"temperature": 1.0}))}
    observed: Counter[int] = Counter(drawn.tolist())
    assert p_value(observed, right, DRAWS) < SIGNIFICANCE / (2 * len(SETTINGS))
