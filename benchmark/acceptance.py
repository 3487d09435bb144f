"""Tokens per decode step of the DFlash chain and of draft trees, spine on and off, by temperature.

    scripts/run.sh python benchmark/acceptance.py --pair tiny-dense

Real servers continue held-out prompts whose greedy continuation is new text (less than 30 % of its
8-grams repeat). Beside them stands prompt look-up, which drafts as many tokens as the chain by
copying: what a drafter must beat. For a target with recurrent layers there is also what the fault
costs that this project exists to prevent: siblings verified one after another. Exits with 1 where,
at temperature 0, a larger budget with the spine on or a tree against the chain gets fewer tokens
per step.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from common import plugins
from common.arguments import integers, numbers, parser
from common.equality import accept_length
from common.plot import plot
from common.server import Server, tree_flags

from sglang_ddtree.drafter.evaluation.ngrams import PromptLookup, repeated_share
from sglang_ddtree.drafter.table import table

MAX_REPEATED_SHARE = 0.3
LOOKUP = "prompt look-up"
FAULT = "siblings in sequence"
# Budgets change where steps begin in the same text, so means of equal drafts differ a little.
TOLERANCE = 0.01


@dataclass
class Results:
    """Tokens per step by method and temperature.

    Attributes:
        chain: budget of the chain, the drafter's block size minus 1.
        tokens_per_step: by method (:func:`tree_name` or :data:`LOOKUP`), then by temperature.
        repeated: share of repeated 8-grams in plain continuations, by temperature.
    """

    chain: int
    tokens_per_step: dict[str, dict[float, float]] = field(default_factory=dict)
    repeated: dict[float, float] = field(default_factory=dict)

    def tree(self, budget: int, temperature: float, spine: bool = True) -> float | None:
        return self.tokens_per_step.get(tree_name(budget, spine), {}).get(temperature)


def tree_name(budget: int, spine: bool) -> str:
    return f"budget {budget:>3}, {'spine' if spine else 'no spine'}"


def fault_name(budget: int) -> str:
    return f"budget {budget:>3}, {FAULT}"


def parse_args() -> argparse.Namespace:
    made = parser(str(__doc__).splitlines()[0])
    made.add_argument("--prompts", type=int, default=76, help="held-out prompts to choose from")
    made.add_argument("--max-new-tokens", type=int, default=128)
    made.add_argument("--budgets", type=integers, default="7,15,31,63,127")
    made.add_argument("--temperatures", type=numbers, default="0,0.7,1")
    made.add_argument("--samples", type=int, default=2, help="per prompt where temperature > 0")
    made.add_argument("--concurrency", type=int, default=8)
    made.add_argument("--spine-only", action="store_true", help="leave trees without spine out")
    made.add_argument("--topk", type=int, help="candidates per depth; default the server's")
    made.add_argument("--output", type=Path, help="write the figures as JSON")
    made.add_argument("--plot", type=Path, help="draw tokens per step over the budget, as a PNG")
    return made.parse_args()


def generate(
    server: Server, prompts: list[str], temperature: float, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Answers to all prompts at one temperature, ended by EOS or the token limit."""
    times = args.samples if temperature > 0 else 1
    return server.generate_all(
        prompts * times,
        args.concurrency,
        temperature=temperature,
        max_new_tokens=args.max_new_tokens,
    )


def choose_prompts(args: argparse.Namespace, results: Results) -> list[str]:
    """Plain decoding: which prompts qualify, how much texts repeat, and prompt look-up."""
    prompts = [record["prompt"] for record in args.pair.prompts(args.prompts)]
    with Server(args.pair.target) as server:
        greedy = generate(server, prompts, 0.0, args)
        shares = [repeated_share(answer["output_ids"]) for answer in greedy]
        chosen = [p for p, share in zip(prompts, shares, strict=True) if share < MAX_REPEATED_SHARE]
        print(
            f"{len(chosen)} of {len(prompts)} prompts qualify: less than {MAX_REPEATED_SHARE:.0%} "
            f"of the 8-grams of their greedy continuation repeat (mean over all: "
            f"{fmean(shares):.1%})",
            flush=True,
        )
        if not chosen:
            raise SystemExit("no prompt qualifies: the target only repeats itself")
        for temperature in args.temperatures:
            answers = generate(server, chosen, temperature, args)
            shares = [repeated_share(answer["output_ids"]) for answer in answers]
            results.repeated[temperature] = fmean(shares)
            record(results, LOOKUP, temperature, look_up(server, chosen, answers, results.chain))
    return chosen


def look_up(
    server: Server, prompts: list[str], answers: list[dict[str, Any]], length: int
) -> float:
    """Tokens per step of prompt look-up over texts that are already written."""
    heads = [server.tokenize(prompt) for prompt in prompts]
    written = steps = 0
    for number, answer in enumerate(answers):
        head, text = heads[number % len(heads)], answer["output_ids"]
        written += len(text) - 1
        steps += PromptLookup([*head, *text]).steps(len(head), length)
    return written / steps


def record(results: Results, method: str, temperature: float, value: float) -> None:
    results.tokens_per_step.setdefault(method, {})[temperature] = value
    print(f"{method:<22} T={temperature:<4g} {value:6.3f} tokens per step", flush=True)


def measure_trees(args: argparse.Namespace, prompts: list[str], results: Results) -> None:
    """One server for each budget and spine setting, all temperatures on it."""
    for spine in (True,) if args.spine_only else (True, False):
        for budget in args.budgets:
            flags = tree_flags(args.pair, budget, topk=args.topk, spine=spine)
            with Server(args.pair.target, flags) as server:
                for temperature in args.temperatures:
                    answers = generate(server, prompts, temperature, args)
                    record(results, tree_name(budget, spine), temperature, accept_length(answers))


def measure_fault(args: argparse.Namespace, prompts: list[str], results: Results) -> None:
    """The same trees with the fault, greedy."""
    for budget in args.budgets:
        with tempfile.TemporaryDirectory(prefix="ddtree-fault-") as folder:
            env = plugins.announce(Path(folder), "common.sequential_fault")
            with Server(args.pair.target, tree_flags(args.pair, budget), env) as server:
                length = accept_length(generate(server, prompts, 0.0, args))
        record(results, fault_name(budget), 0.0, length)


def violations(results: Results, budgets: list[int], temperature: float) -> Iterator[str]:
    """Where more of ``budgets`` (ascending), or a tree for the chain, got fewer tokens a step."""
    measured = [(budget, results.tree(budget, temperature)) for budget in budgets]
    known = [(budget, value) for budget, value in measured if value is not None]
    for (smaller, less), (larger, more) in pairwise(known):
        if more < less * (1 - TOLERANCE):
            yield f"T={temperature:g}: budget {larger} gets {more:.3f}, budget {smaller} {less:.3f}"
    chain = results.tree(results.chain, temperature)
    for budget, value in known:
        if chain is not None and budget > results.chain and value < chain * (1 - TOLERANCE):
            yield f"T={temperature:g}: budget {budget} gets {value:.3f}, the chain {chain:.3f}"


def targets(results: Results) -> Iterator[tuple[str, float, float]]:
    """What this pair should reach: name, measured, wanted. Only what was measured is listed."""
    lookup = results.tokens_per_step[LOOKUP]
    for temperature, copied in lookup.items():
        chain = results.tree(results.chain, temperature)
        if chain is None:
            continue
        yield f"T={temperature:g} chain above prompt look-up", chain, copied
        if temperature == 0:
            yield "T=0 chain", chain, 3.5
        wanted = {0.0: {31: 1.15, 63: 1.2}, 1.0: {63: 1.3}}.get(temperature, {})
        for budget, ratio in wanted.items():
            value = results.tree(budget, temperature)
            if value is not None:
                yield f"T={temperature:g} budget {budget} over chain", value / chain, ratio


def print_table(results: Results) -> None:
    temperatures = list(results.repeated)
    rows = []
    for method, values in results.tokens_per_step.items():
        row = [method]
        for temperature in temperatures:
            chain = results.tree(results.chain, temperature)
            value = values.get(temperature)
            ratio = f" ({value / chain:.2f}x)" if chain and value else ""
            row.append("-" if value is None else f"{value:.3f}{ratio}")
        rows.append(row)
    rows.append(["repeated 8-grams", *(f"{results.repeated[t]:.1%}" for t in temperatures)])
    columns = ["tokens per step (over chain)", *(f"T={t:g}" for t in temperatures)]
    print(f"\n{table(columns, rows)}\nThe chain is budget {results.chain} with the spine.\n")


def curves(results: Results, budgets: list[int]) -> dict[str, list[float]]:
    """Tokens per step at temperature 0 by budget, and with the fault where it was measured."""
    names: dict[str, Callable[[int], str]] = {
        "each node from its parent's state": lambda budget: tree_name(budget, spine=True),
        f"the fault: {FAULT}": fault_name,
    }
    found = {
        label: [results.tokens_per_step.get(name(budget), {}).get(0.0) for budget in budgets]
        for label, name in names.items()
    }
    return {label: values for label, values in found.items() if None not in values}


def main() -> int:
    args = parse_args()
    results = Results(chain=args.pair.block_size - 1)
    args.budgets = sorted({*args.budgets, results.chain})
    prompts = choose_prompts(args, results)
    measure_trees(args, prompts, results)
    if args.pair.is_hybrid and 0.0 in args.temperatures:
        measure_fault(args, prompts, results)
    print_table(results)
    for name, value, wanted in targets(results):
        print(f"{'hit ' if value >= wanted else 'MISS'}  {name}: {value:.3f}, target {wanted:.3f}")
    failures = []
    for temperature in args.temperatures:
        found = list(violations(results, args.budgets, temperature))
        failures += found if temperature == 0 else []
        for line in found:
            print(f"{'FAILED' if temperature == 0 else 'noise?'}  {line}")
    if args.plot:
        plot(args.plot, args.pair.name, args.budgets, curves(results, args.budgets))
    if args.output:
        args.output.write_text(json.dumps(vars(results), indent=1) + "\n")
    if not failures:
        print(f"T=0: no budget and no tree gets less than a smaller one (within {TOLERANCE:.0%})")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
