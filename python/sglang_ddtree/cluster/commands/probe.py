"""``sglang-ddtree probe``: measure on this machine what ``plan`` otherwise takes from tables."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_ddtree.cluster.facts.models import ModelFacts
    from sglang_ddtree.cluster.probe.allreduce_probe import Candidate


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "probe",
        help="measure all-reduces of verify steps over candidate groups, and the steps of a "
        "running server; writes JSON for plan --probe",
    )
    parser.add_argument("--model", required=True, metavar="NAME|PATH")
    parser.add_argument("--draft-model-path", metavar="PATH")
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON to write")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tp", type=int, nargs="*", help="group sizes (default: 2, 4, 8 that fit)")
    parser.add_argument("--budgets", type=int, nargs="*", default=[31, 63])
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--iterations", type=int, default=20, help="all-reduces in a timed loop")
    parser.add_argument("--url", help="a running server of --model, whose steps are timed, too")
    parser.add_argument("--url-tp", type=int, default=1, help="tensor-parallel size of --url")
    parser.add_argument("--url-budget", type=int, default=0, help="tree budget of --url, 0: plain")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and write; 1 where no group could be measured, 2 for senseless arguments."""
    from sglang_ddtree.cluster.facts.config_facts import ConfigError
    from sglang_ddtree.cluster.facts.model_facts import model_facts
    from sglang_ddtree.cluster.machine.discover import NvmlUnavailable

    try:
        model = model_facts(args.model, args.draft_model_path)
        found = _candidates(args)
    except (KeyError, ConfigError, NvmlUnavailable, ValueError) as error:
        print(f"sglang-ddtree probe: {error.args[0]}", file=sys.stderr)
        return 2
    tables = [table for candidate in found if (table := _measure(candidate, model, args))]
    report = {"version": 1, "model": model.name, "hidden": model.hidden, "allreduce": tables}
    if args.url:
        report["steps"] = _steps(model, args)
    Path(args.out).write_text(json.dumps(report, indent=2) + "\n")
    print(f"written: {args.out}; use it with sglang-ddtree plan --probe {args.out}")
    return 0 if tables or not found else 1


def verify_rows(model: ModelFacts, budgets: list[int], batches: list[int]) -> list[int]:
    """Rows of hidden states that a step reduces: plain, chain and tree widths times batches."""
    widths = {1, model.drafter.block, *(budget + 1 for budget in budgets)}
    return sorted({width * batch for width in widths for batch in batches})


def _candidates(args: argparse.Namespace) -> list[Candidate]:
    from sglang_ddtree.cluster.machine.cpu_machine import node_of, spread_ranks, usable_nodes
    from sglang_ddtree.cluster.machine.discover import read_machine
    from sglang_ddtree.cluster.planning.groups import form_groups, peer_level
    from sglang_ddtree.cluster.probe.allreduce_probe import GLOO, Candidate, transports_of

    if args.device == "cpu":
        nodes = usable_nodes()
        found = []
        for tp in args.tp or [2]:
            cores = spread_ranks(nodes, tp)
            crosses = len({node_of(group, nodes) for group in cores}) > 1
            found.append(Candidate(GLOO, tuple(range(tp)), crosses, cores))
        return found
    topology = read_machine()
    found = []
    for tp in args.tp or [tp for tp in (2, 4, 8) if tp <= len(topology.gpus)]:
        group = form_groups(topology, tp)[0]
        environ = {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, group.gpus)),
        }
        if level := peer_level(topology, group.gpus):
            environ["NCCL_P2P_LEVEL"] = level
        cores = tuple(topology.gpu(gpu).cores for gpu in group.gpus)
        for transport in transports_of(tp):
            found.append(
                Candidate(
                    transport,
                    group.gpus,
                    group.straddles,
                    cores if all(cores) else (),
                    environ,
                )
            )
    return found


def _measure(
    candidate: Candidate, model: ModelFacts, args: argparse.Namespace
) -> dict[str, Any] | None:
    from sglang_ddtree.cluster.probe.allreduce_probe import ProbeFailed, measure

    try:
        points = measure(
            candidate,
            verify_rows(model, args.budgets, args.batches),
            model.hidden,
            args.iterations,
        )
    except ProbeFailed as failure:
        print(f"not measured: {failure}", file=sys.stderr)
        return None
    if not points:
        print(f"{candidate}: serves none of these sizes", file=sys.stderr)
        return None
    print(f"{candidate}: " + ", ".join(f"{size / 1024:.0f} KiB {us:.0f} us" for size, us in points))
    return {
        "transport": candidate.transport,
        "ranks": len(candidate.members),
        "crosses": candidate.crosses,
        "members": list(candidate.members),
        "points": points,
    }


def _steps(model: ModelFacts, args: argparse.Namespace) -> list[dict[str, Any]]:
    from sglang_ddtree.cluster.probe.served_probe import measure_steps

    steps = measure_steps(args.url, model.name, args.url_tp, args.url_budget, args.batches)
    for step in steps:
        width = step.batch * (step.budget + 1)
        print(f"{args.url}: {step.batch} requests, {width} rows a step: {step.ms:.1f} ms")
    return [asdict(step) for step in steps]
