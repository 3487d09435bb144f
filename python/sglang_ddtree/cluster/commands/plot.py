"""A picture of a plan: where a step's time goes, and what a budget buys."""

from __future__ import annotations

from typing import Any

from sglang_ddtree.cluster.planning.plan import Plan
from sglang_ddtree.cluster.planning.prediction import predict

PARTS = ("draft", "verify", "all-reduces", "host")


def plot_plan(plan: Plan, path: str) -> None:
    """Write two panels as a PNG: step time by option, tokens a second by budget.

    The whiskers of the first span the fastest and the slowest known all-reduces.
    """
    # Imported here: drawing is the only thing that needs it. Its object interface touches neither
    # a display nor a user's settings.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_steps(left, plan)
    _draw_rates(right, plan)
    curve = "measured" if plan.curve.measured else "assumed"
    figure.suptitle(
        f"{plan.model.name}, context {plan.request.context}: predicted, tokens a step {curve}"
    )
    figure.savefig(path, format="png", dpi=120)


def step_parts(plan: Plan) -> dict[str, tuple[float, ...]]:
    """Option label to the milliseconds of `PARTS`, for options with a prediction."""
    return {
        option.label: (
            step.draft,
            step.verify,
            step.draft_reduces.typical + step.verify_reduces.typical,
            step.host,
        )
        for option in plan.options
        if (step := option.step) is not None
    }


def _draw_steps(axes: Any, plan: Plan) -> None:
    parts = step_parts(plan)
    steps = [option.step for option in plan.options if option.step is not None]
    bottom = [0.0] * len(parts)
    for i, name in enumerate(PARTS):
        heights = [times[i] for times in parts.values()]
        axes.bar(list(parts), heights, bottom=bottom, label=name)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    spans = [[s.total - s.low for s in steps], [s.high - s.total for s in steps]]
    if steps:
        axes.errorbar(list(parts), bottom, yerr=spans, fmt="none", ecolor="black", capsize=4)
    axes.set_title(f"step time, budget {plan.budget}, {plan.request.concurrency} requests")
    axes.set_ylabel("ms")
    axes.legend()


def _draw_rates(axes: Any, plan: Plan) -> None:
    cells = [cell for cell in predict(plan) if cell.tokens_per_second is not None]
    for concurrency, tp in dict.fromkeys((cell.concurrency, cell.tp) for cell in cells):
        row = [cell for cell in cells if (cell.concurrency, cell.tp) == (concurrency, tp)]
        axes.plot(
            [cell.budget for cell in row],
            [cell.tokens_per_second for cell in row],
            marker="o",
            linestyle="-" if concurrency == 1 else "--",
            label=f"TP{tp}, {concurrency} at a time",
        )
    axes.set_title("all replicas together")
    axes.set_xlabel("budget (nodes)")
    axes.set_ylabel("tok/s")
    axes.legend(fontsize="small")
