"""Predicted tokens a second of every option, by budget and by concurrency."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sglang_ddtree.cluster.planning.plan import Plan, evaluate, shapes

BUDGETS = (0, 7, 15, 31, 63, 127)


@dataclass(frozen=True)
class Prediction:
    """tokens_per_second: over all replicas; None where the option does not fit the load, or has no
    all-reduce figures."""

    tp: int
    concurrency: int
    budget: int
    tokens_per_second: float | None


def predict(plan: Plan, concurrencies: tuple[int, ...] | None = None) -> list[Prediction]:
    """For every tensor-parallel size of the plan, as many replicas as the load has use for.

    concurrencies: 1 and that of the plan by default.
    """
    concurrencies = concurrencies or tuple(sorted({1, plan.request.concurrency}))
    budgets = sorted({*BUDGETS, plan.budget}) if plan.model.drafter.layers else [0]
    # Groups take long to find on large machines, and no budget changes them.
    groups = {(option.tp, option.replicas): option.groups for option in plan.options}
    found = []
    for concurrency in concurrencies:
        request = replace(plan.request, concurrency=concurrency, replicas=None)
        for tp, replicas in shapes(plan.topology, request):
            for budget in budgets:
                option = evaluate(
                    plan.topology,
                    plan.model,
                    replace(request, budget=budget),
                    plan.figures,
                    tp,
                    replicas,
                    groups.get((tp, replicas)),
                )
                if option.groups:
                    groups[tp, replicas] = option.groups
                rate = option.tokens_per_second if option.step is not None else None
                found.append(Prediction(tp, concurrency, budget, rate))
    return found


def prediction_table(plan: Plan) -> list[str]:
    """Tokens a second: a row for each concurrency and size, a column for each budget."""
    cells = predict(plan)
    budgets = list(dict.fromkeys(cell.budget for cell in cells))
    lines = [f"{'':24}" + "".join(f"{f'budget {b}' if b else 'plain':>12}" for b in budgets)]
    rows = dict.fromkeys((cell.concurrency, cell.tp) for cell in cells)
    for concurrency, tp in rows:
        row = [cell for cell in cells if (cell.concurrency, cell.tp) == (concurrency, tp)]
        if all(cell.tokens_per_second is None for cell in row):
            continue
        load = "1 request" if concurrency == 1 else f"{concurrency} requests"
        lines.append(
            f"{load + f', TP{tp}':24}"
            + "".join(
                f"{'-' if c.tokens_per_second is None else f'{c.tokens_per_second:.0f}':>12}"
                for c in row
            )
        )
    return lines if len(lines) > 1 else []
