"""``drafter eval``: hit rates and tokens per step on texts of the served target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from sglang_ddtree.drafter.data.capture import capture_group
from sglang_ddtree.drafter.evaluation.analysis import LOOKUP, Tally, draft_everywhere
from sglang_ddtree.drafter.evaluation.validate import read_config
from sglang_ddtree.drafter.objective.objective import Ends
from sglang_ddtree.drafter.progress import progress
from sglang_ddtree.drafter.table import table
from sglang_ddtree.drafter.upstream.capture_engine import CaptureEngine
from sglang_ddtree.drafter.weights.load import load_drafter

Results = dict[str, dict[str, Any]]


def evaluate(
    drafter: Path,
    target: str,
    answers: Sequence[Mapping[str, Any]],
    engine: CaptureEngine,
    *,
    budgets: Sequence[int],
    topk: int,
    max_length: int,
    batch: int = 8,
) -> Results:
    """Figures by temperature."""
    model, vocabulary = load_drafter(drafter, read_config(drafter))
    model.eval()
    ends = Ends.of(target, vocabulary).place(torch.device("cpu"), torch.float32)
    budgets = sorted({*budgets, model.config.block - 1})
    tallies: dict[float, Tally] = {}
    with progress(len(answers), 0, "evaluated", "answer") as bar:
        for first in range(0, len(answers), batch):
            group = answers[first : first + batch]
            for answer, sample in zip(group, capture_group(group, engine, max_length), strict=True):
                drafted = draft_everywhere(model, ends, model.config, sample, topk)
                tallies.setdefault(answer["temperature"], Tally()).add(drafted, budgets)
                bar.update()
    return {f"{t:g}": tallies[t].result() for t in sorted(tallies)}


def report(results: Results) -> str:
    """Tables of tokens per step and of hit rates."""
    temperatures = list(results)
    methods = list(results[temperatures[0]]["tokens_per_step"])
    rows = []
    for method in methods:
        cells = [method]
        for temperature in temperatures:
            found = results[temperature]["tokens_per_step"]
            ratio = (
                "" if method in (LOOKUP, "chain") else f" ({found[method] / found['chain']:.2f}x)"
            )
            cells.append(f"{found[method]:.3f}{ratio}")
        rows.append(cells)
    shares = [f"{results[t]['repeated_share']:.1%}" for t in temperatures]
    rows.append(["repeated 8-grams", *shares])
    columns = ["tokens per step (over chain)", *(f"T={t}" for t in temperatures)]
    parts = [table(columns, rows)]
    for temperature in temperatures:
        rates = results[temperature]["hit_rates"]
        heads = [f"position, T={temperature}", *(f"top {r + 1}" for r in range(len(rates[0])))]
        lines = [[str(p + 1), *(f"{x:.3f}" for x in row)] for p, row in enumerate(rates)]
        parts.append(table(heads, lines))
    return "\n\n".join(parts)


def plot(results: Results, picture: Path) -> None:
    """Draw tokens per step over the budget and hit rates over the position, as a PNG."""
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("Agg")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for temperature, found in results.items():
        steps, rates = found["tokens_per_step"], found["hit_rates"]
        names = [name for name in steps if name != LOOKUP]
        line = left.plot(names, [steps[name] for name in names], "o-", label=f"T={temperature}")
        left.axhline(steps[LOOKUP], color=line[0].get_color(), linestyle=":", linewidth=1)
        positions = range(1, len(rates) + 1)
        right.plot(positions, [row[0] for row in rates], "o-", label=f"T={temperature}, top 1")
        right.plot(
            positions,
            [row[-1] for row in rates],
            "x--",
            label=f"T={temperature}, top {len(rates[0])}",
        )
    left.set(ylabel="tokens per step (dotted: prompt look-up)", ylim=(0, None))
    right.set(xlabel="position in the block", ylabel="share of hits", ylim=(0, 1))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(picture, dpi=120)
    pyplot.close(figure)
