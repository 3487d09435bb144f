"""Tokens per decode step of chain, tree and prompt look-up, without a serving engine.

The target's text does not depend on what was drafted: under greedy decoding it is the argmax
text, and when the target's token is drawn at every node it is a plain sample. So each continuation
is written once by plain decoding, the drafter runs once with an anchor at every position, and a
decode step is a look-up: how far does the known continuation stay inside the tree?
"""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from sglang_ddtree.drafter.model.model import Drafter
from sglang_ddtree.drafter.objective.objective import block_inputs

from .drafting import features
from .recipe import Recipe
from .stages import AnyTarget
from .tokens import MASK_ID

BUDGETS = (15, 31, 63, 127)
TEMPERATURES = (0.0, 0.7, 1.0)
Ranks = tuple[int, ...]


def best_first(log_probs: np.ndarray, budget: int, *, spine: bool) -> set[Ranks]:
    """Nodes of the draft tree, each the ranks of its tokens from the root.

    ``log_probs [depths, K]`` descend along K. With ``spine`` the all-zero path is in the tree
    before best-first growth fills the rest of ``budget``.
    """
    depths, width = log_probs.shape
    tree = {(0,) * depth for depth in range(1, depths + 1)} if spine else set()
    heap: list[tuple[float, Ranks]] = [(-float(log_probs[0, 0]), (0,))]
    while heap and len(tree) < budget:
        cost, node = heapq.heappop(heap)
        tree.add(node)
        depth, rank = len(node), node[-1]
        if rank + 1 < width:
            sibling = cost + float(log_probs[depth - 1, rank] - log_probs[depth - 1, rank + 1])
            heapq.heappush(heap, (sibling, (*node[:-1], rank + 1)))
        if depth < depths:
            heapq.heappush(heap, (cost - float(log_probs[depth, 0]), (*node, 0)))
    return tree


def accepted(tree: set[Ranks], ranks: list[int]) -> int:
    """Depth to which the path of ``ranks`` (one a depth, -1 where not drafted) is in the tree."""
    depth = 0
    while depth < len(ranks) and tuple(ranks[: depth + 1]) in tree:
        depth += 1
    return depth


def look_up(tokens: list[int], length: int, longest: int = 3) -> list[int]:
    """Prompt look-up: what followed the latest earlier match of the longest suffix."""
    for size in range(longest, 0, -1):
        suffix = tokens[-size:]
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == suffix:
                return tokens[start + size : start + size + length]
    return []


def repeated_share(tokens: list[int], size: int = 8) -> float:
    """Share of the n-grams of a continuation that occurred in it before."""
    grams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


@dataclass
class Continuation:
    """A prompt with what plain decoding made of it, and the drafter's view of every position."""

    tokens: list[int]
    start: int
    ranked: np.ndarray
    log_probs: np.ndarray


@torch.inference_mode()
def continue_prompt(
    target: AnyTarget, prompt: list[int], new_tokens: int, temperatures: Tensor, seed: int
) -> Tensor:
    """Plain decoding of one prompt, one row a temperature: ``[rows, prompt + new_tokens]``."""
    generator = torch.Generator().manual_seed(seed)
    step = torch.tensor(prompt).expand(len(temperatures), -1)
    cache = target.new_cache(len(temperatures), len(prompt) + new_tokens, torch.float32)
    rows, greedy = [step], temperatures == 0
    divisor = torch.where(greedy, 1.0, temperatures)[:, None]
    for _ in range(new_tokens):
        states = target.hidden_states(step, cache)
        logits = target.logits([states[-1][:, -1:]])[:, 0]
        drawn = torch.multinomial((logits / divisor).softmax(-1), 1, generator=generator)
        step = torch.where(greedy[:, None], logits.argmax(-1, keepdim=True), drawn)
        rows.append(step)
    return torch.cat(rows, dim=1)


@torch.inference_mode()
def draft_everywhere(
    target: AnyTarget, drafter: Drafter, recipe: Recipe, tokens: Tensor, first: int, width: int = 64
) -> tuple[np.ndarray, np.ndarray]:
    """Ranked tokens and log-probabilities ``[anchors, block - 1, width]`` from ``first`` on."""
    anchors = torch.arange(first, tokens.shape[0])[None]
    states = features(target, recipe, tokens[None])
    ids = block_inputs(tokens[None].gather(1, anchors), recipe.block, MASK_ID)
    hidden = drafter(states, target.embed(ids), anchors)[0, :, 1:]
    top = target.head(hidden).log_softmax(-1).topk(width, dim=-1)
    return top.indices.numpy(), top.values.numpy()


class Tally:
    """Tokens and steps by method, and the repetition of the continuations counted."""

    def __init__(self) -> None:
        self.tokens: dict[str, int] = defaultdict(int)
        self.steps: dict[str, int] = defaultdict(int)
        self.repeated: list[float] = []

    def add(self, method: str, lengths: list[int]) -> None:
        self.tokens[method] += sum(lengths)
        self.steps[method] += len(lengths)

    def row(self) -> dict[str, float]:
        means = {m: round(self.tokens[m] / self.steps[m], 3) for m in self.steps}
        share = round(sum(self.repeated) / len(self.repeated), 3)
        return {"texts": len(self.repeated), "repeated": share, **means}


def taken_by_step(text: Continuation, recipe: Recipe, method: str, position: int) -> int:
    """How many of the tokens after ``position``, the last committed one, the step's draft holds."""
    following = text.tokens[position + 1 : position + recipe.block]
    if method == "look-up":
        guess = look_up(text.tokens[: position + 1], len(following))
        wrong = (
            i for i, pair in enumerate(zip(guess, following, strict=False)) if len({*pair}) > 1
        )
        return next(wrong, len(guess))
    anchor = position - text.start
    kind, budget = method.split("-")
    tree = best_first(text.log_probs[anchor], int(budget), spine=kind == "spine")
    ranks = [_rank(text.ranked[anchor, d], token) for d, token in enumerate(following)]
    return accepted(tree, ranks)


def step_lengths(text: Continuation, recipe: Recipe, method: str) -> list[int]:
    """Tokens output by each decode step: accepted + bonus, cut at the end of the text."""
    position, last = text.start, len(text.tokens) - 1
    lengths = []
    while position < last:
        step = min(taken_by_step(text, recipe, method, position) + 1, last - position)
        lengths.append(step)
        position += step
    return lengths


def _rank(ranked: np.ndarray, token: int) -> int:
    found = np.flatnonzero(ranked == token)
    return int(found[0]) if len(found) else -1


def evaluate(
    target: AnyTarget,
    drafter: Drafter,
    recipe: Recipe,
    folder: Path,
    *,
    new_tokens: int = 128,
    every: int = 1,
) -> dict[str, dict[str, float]]:
    """Print and return tokens per step by method, over all held-out prompts and by kind.

    With ``every`` above 1 only each so many-th prompt counts, which is quicker.

    End tokens do not stop a continuation: every prompt is carried ``new_tokens`` on. A method is
    ``look-up``, or ``spine-N`` and ``free-N`` for trees of budget N; ``spine-15`` is the chain of
    a block of 16. Rows named ``new`` cover the continuations that repeat less than 30 % of their
    8-grams.
    """
    tokenizer = Tokenizer.from_file(str(folder / "target" / "tokenizer.json"))
    methods = ["look-up", *(f"{kind}-{b}" for kind in ("spine", "free") for b in BUDGETS)]
    tallies: dict[str, Tally] = defaultdict(Tally)
    prompts = (folder / "prompts.jsonl").read_text().splitlines()[::every]
    for number, line in enumerate(prompts):
        prompt = json.loads(line)
        ids = tokenizer.encode(prompt["prompt"], add_special_tokens=False).ids
        rows = continue_prompt(target, ids, new_tokens, torch.tensor(TEMPERATURES), number)
        for temperature, row in zip(TEMPERATURES, rows, strict=True):
            ranked, log_probs = draft_everywhere(target, drafter, recipe, row, len(ids))
            text = Continuation(row.tolist(), len(ids), ranked, log_probs)
            repeated = repeated_share(text.tokens[len(ids) :])
            groups = ["all", prompt["kind"], *(["new"] if repeated < 0.3 else [])]
            for group in groups:
                tallies[f"T={temperature} {group}"].repeated.append(repeated)
            for method in methods:
                lengths = step_lengths(text, recipe, method)
                for group in groups:
                    tallies[f"T={temperature} {group}"].add(method, lengths)
    table = {name: tally.row() for name, tally in sorted(tallies.items())}
    _print_table(table)
    return table


def _print_table(table: dict[str, dict[str, float]]) -> None:
    columns = list(next(iter(table.values())))
    print(" " * 14 + " ".join(f"{column:>9}" for column in columns))
    for name, row in table.items():
        print(f"{name:<14}" + " ".join(f"{row[column]:>9.3f}" for column in columns))
