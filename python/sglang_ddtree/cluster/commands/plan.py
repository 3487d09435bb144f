"""``sglang-ddtree plan``: how to serve a model on a machine with several GPUs."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any


def add(commands: Any) -> None:
    """Add the subcommand."""
    from sglang_ddtree.cluster.commands.arguments import add_arguments

    parser = commands.add_parser(
        "plan",
        help="the machine's topology, device groups with the reasons, predicted step times and "
        "tok/s, memory, exact commands; changes nothing",
    )
    add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plot", metavar="PNG", help="draw step times and tok/s by budget")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the plan; 1 where nothing fits, 2 where the arguments make no sense."""
    from sglang_ddtree.cluster.commands.arguments import UsageError, read_arguments
    from sglang_ddtree.cluster.planning.plan import PlanRefused

    try:
        question = read_arguments(args)
        if question.topology is None and not args.plot:
            return _print_memory(question, args)
        plan = question.plan()
        if args.plot:
            from sglang_ddtree.cluster.commands.plot import plot_plan

            plot_plan(plan, args.plot)
    except UsageError as error:
        print(f"sglang-ddtree plan: {error}", file=sys.stderr)
        return 2
    except PlanRefused as refusal:
        print(f"sglang-ddtree plan: {refusal}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(_to_json(question, plan), indent=2))
    else:
        _print_plan(question, plan)
    return 0


def _print_plan(question: Any, plan: Any) -> None:
    from sglang_ddtree.cluster.commands.report import plan_report
    from sglang_ddtree.cluster.planning.memory import gb

    if question.assumed_memory:
        print(
            f"{plan.topology.source} does not say how much memory the GPUs have: "
            f"{gb(question.gpu_memory)} GB assumed, an RTX PRO 6000 (--gpu-memory)\n"
        )
    print(plan_report(plan, question.endpoints), end="")


def _to_json(question: Any, plan: Any) -> dict[str, Any]:
    from sglang_ddtree.cluster.commands.plan_json import to_json

    return to_json(plan, question.endpoints) | {"assumed_memory": question.assumed_memory}


def _print_memory(question: Any, args: argparse.Namespace) -> int:
    """What can be said without a machine: whether a GPU of the given memory holds the model."""
    from sglang_ddtree.cluster.commands.memory_table import memory_rows, memory_table
    from sglang_ddtree.cluster.planning.plan import request_load

    load = request_load(question.model, question.request, replicas=1)
    sizes = (args.tp,) if args.tp else None
    rows = memory_rows(question.model, load, question.gpu_memory, sizes)
    if args.json:
        print(json.dumps({"model": question.model.name, "memory": rows}, indent=2))
    else:
        print(f"no plan, memory only: {question.no_topology}\n")
        print(
            f"{question.model.name}: {load.batch} requests x {load.context} tokens, budget "
            f"{load.budget}; GB on each GPU"
        )
        print("\n".join(memory_table(question.model, load, question.gpu_memory, sizes)))
        for group in question.model.uncertain:
            print(f"uncertain: {group}: {question.model.sources[group]}")
    return 0 if any(row["fits"] for row in rows) else 1
