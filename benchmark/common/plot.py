"""Pictures of measured curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib import pyplot


def plot(
    file: Path, title: str, budgets: Sequence[int], curves: Mapping[str, Sequence[float]]
) -> None:
    """Draw tokens per target forward over the node budget, as a PNG."""
    matplotlib.use("Agg")
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for (label, values), style in zip(curves.items(), ("o-", "x--"), strict=False):
        axes.plot(budgets, values, style, label=label)
    axes.set_xscale("log")
    axes.set_xticks(budgets, [str(budget) for budget in budgets])
    axes.minorticks_off()
    axes.set(ylim=(0, None), title=title)
    axes.set(xlabel="node budget", ylabel="tokens per target forward")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
