"""What a training run tells: a JSONL log that survives interruptions, and a picture of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sglang_ddtree.drafter.files import append_line, whole_lines, write_text


class Log:
    """JSONL of training figures; on resume, lines after the checkpoint are dropped."""

    def __init__(self, path: Path, first_step: int) -> None:
        self.path = path
        kept = [line for line in whole_lines(path) if line["step"] < first_step]
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))

    def write(self, **figures: Any) -> None:
        append_line(self.path, figures)
        print(json.dumps(figures), flush=True)


def plot_training(log: Path, picture: Path) -> None:
    """Draw loss and hit rates by position over the steps, as a PNG."""
    import matplotlib
    from matplotlib import pyplot

    lines = whole_lines(log)
    matplotlib.use("Agg")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    steps = [line["step"] for line in lines]
    left.plot(steps, [line["loss"] for line in lines])
    left.set(xlabel="step", ylabel="loss")
    positions = len(lines[0].get("hits", ()))
    for position in range(positions):
        color = pyplot.cm.viridis(position / max(1, positions - 1))
        hits = [line["hits"][position] for line in lines]
        right.plot(steps, hits, color=color, label=f"{position + 1}")
    if positions:
        right.legend(title="position", fontsize="small", ncols=2)
    right.set(xlabel="step", ylabel="share of top-1 hits", ylim=(0, 1))
    for axes in (left, right):
        axes.grid(alpha=0.3)
    partial = picture.with_name(picture.name + ".partial")
    figure.savefig(partial, dpi=120, format="png")
    pyplot.close(figure)
    partial.replace(picture)
