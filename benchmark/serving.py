"""Serving speed of plain decoding, the DFlash chain and draft trees, in one run.

    scripts/run.sh python benchmark/serving.py --pair tiny-dense

The client is SGLang's own (``python -m sglang.benchmark.serving``). All servers are up from the
start, idle ones sleep, and the client visits them in turn: forth in one round and back in the next,
so that a machine that slows down slows all of them. Figures are medians over rounds; ratios are
taken within a round first. Before anything is timed every server's greedy tokens must equal those
of plain decoding, and the timed answers must again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median

import torch
from common.arguments import integers, parser
from common.client import DATASETS, Measurement, Workload, measure
from common.equality import Reference, accept_length, references, tally
from common.server import Server, dflash_flags, tree_flags

from sglang_ddtree.drafter.table import table

PLAIN, CHAIN = "plain", "chain"
# Without a GPU, plain decoding with SGLang's own torch attention, one request at a time.
NATIVE = "plain, torch_native"
STOCK = "stock DFLASH"
Runs = dict[tuple[int, str], list[Measurement]]


def parse_args() -> argparse.Namespace:
    made = parser(str(__doc__).splitlines()[0])
    made.add_argument("--dataset", choices=DATASETS, default=DATASETS[0])
    made.add_argument("--budgets", type=integers, default="31,63")
    made.add_argument("--no-spine", type=integers, default=[], help="budgets of trees without it")
    made.add_argument("--stock", action="store_true", help="SGLang's own DFLASH as well")
    made.add_argument("--no-native", action="store_true", help="leave SGLang's torch attention out")
    made.add_argument("--concurrency", type=integers, default="1,4,16")
    made.add_argument("--requests", type=int, default=32)
    made.add_argument("--input-len", type=int, default=64, help="of a random-ids prompt")
    made.add_argument("--output-len", type=int, default=128)
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--output", type=Path, help="write all measurements as JSON")
    made.add_argument("flags", nargs="*", help="flags of every server, after --")
    return made.parse_args()


def start_servers(args: argparse.Namespace, stack: ExitStack) -> dict[str, Server]:
    """Plain, chain and tree servers by name, all up."""
    pair = args.pair
    flags = {PLAIN: [], CHAIN: tree_flags(pair, pair.block_size - 1)}
    flags |= {f"tree {budget}": tree_flags(pair, budget) for budget in args.budgets}
    for budget in args.no_spine:
        flags[f"tree {budget}, no spine"] = tree_flags(pair, budget, spine=False)
    if args.stock:
        flags[STOCK] = dflash_flags(pair)
    if not args.no_native and not torch.cuda.is_available():
        flags[NATIVE] = ["--attention-backend", "torch_native"]
    servers = {
        name: Server(pair.target, [*pair.flags, *args.flags, *its_flags])
        for name, its_flags in flags.items()
    }
    return {name: stack.enter_context(server) for name, server in servers.items()}


def check_outputs(
    servers: dict[str, Server], workload: Workload, clients: int
) -> tuple[list[Reference], dict[str, float]]:
    """Plain decoding's answers, and the accept length of each server whose tokens equal them."""
    prompts = workload.prompts()
    found = references(servers[PLAIN], prompts, workload.output_len, clients)
    lengths = {}
    for name, server in servers.items():
        answers = server.generate_all(
            prompts, clients, max_new_tokens=workload.output_len, ignore_eos=True
        )
        result = tally(found, [answer["output_ids"] for answer in answers])
        if result.differing:
            raise SystemExit(
                f"{name}: {result.differing} of {len(prompts)} answers are not those of plain "
                "decoding; nothing was timed"
            )
        lengths[name] = accept_length(answers)
        print(f"{name}: {result.tokens} tokens equal plain decoding, {result.excused} near ties")
    return found, lengths


def measure_all(servers: dict[str, Server], workload: Workload, args: argparse.Namespace) -> Runs:
    """All rounds; every other round goes back through the servers."""
    runs: Runs = defaultdict(list)
    for number in range(args.rounds):
        for clients in args.concurrency:
            for name in list(servers)[:: -1 if number % 2 else 1]:
                run = measure(servers[name], workload, clients)
                runs[clients, name].append(run)
                print(
                    f"round {number + 1}  clients {clients:>2}  {name:<17} "
                    f"{run.tokens_per_s:8.1f} tok/s  TPOT {run.tpot_ms:6.2f} ms",
                    flush=True,
                )
    return runs


def ratio(runs: Runs, clients: int, name: str, baseline: str) -> float:
    """Throughput over that of ``baseline`` in the same round, the median of rounds."""
    pairs = zip(runs[clients, name], runs[clients, baseline], strict=True)
    return median(one.tokens_per_s / base.tokens_per_s for one, base in pairs)


def print_table(runs: Runs, lengths: dict[str, float]) -> None:
    rows = []
    for (clients, name), measured in runs.items():
        speeds = [run.tokens_per_s for run in measured]
        rows.append(
            [
                f"{name}, {clients} client{'s' if clients > 1 else ''}",
                f"{median(speeds):.1f}",
                f"{min(speeds):.0f}-{max(speeds):.0f}",
                f"{median(run.tpot_ms for run in measured):.2f}",
                f"{lengths[name]:.2f}" if lengths[name] else "-",
                f"{ratio(runs, clients, name, PLAIN):.2f}x",
                f"{ratio(runs, clients, name, CHAIN):.2f}x",
            ]
        )
    columns = ["server", "output tok/s", "range", "TPOT ms", "accept length", "to plain"]
    print(f"\n{table([*columns, 'to chain'], rows)}\n")


def count_differing(runs: Runs) -> int:
    """Timed answers that are not the text of plain decoding's first run."""
    expected = next(measured[0].texts for (_, name), measured in runs.items() if name == PLAIN)
    return sum(
        one != other
        for measured in runs.values()
        for run in measured
        for one, other in zip(run.texts, expected, strict=True)
    )


def describe_machine() -> str:
    threads = {name: os.environ.get(name, "unset") for name in ("OMP_NUM_THREADS", "OMP_PROC_BIND")}
    settings = ", ".join(f"{name} {value}" for name, value in threads.items())
    return f"{os.cpu_count()} CPUs, torch uses {torch.get_num_threads()} threads; {settings}"


def main() -> int:
    args = parse_args()
    print(describe_machine())
    workload = Workload(args.pair, args.dataset, args.requests, args.input_len, args.output_len)
    with ExitStack() as stack:
        servers = start_servers(args, stack)
        found, lengths = check_outputs(servers, workload, max(args.concurrency))
        runs = measure_all(servers, workload, args)
    print_table(runs, lengths)
    for clients in args.concurrency:
        trees = [name for name in servers if name.startswith("tree ")]
        best = max(trees, key=lambda name: ratio(runs, clients, name, PLAIN))
        to_plain, to_chain = (ratio(runs, clients, best, name) for name in (PLAIN, CHAIN))
        line = f"clients {clients:>2}: best is {best}, {to_plain:.2f}x plain, {to_chain:.2f}x chain"
        for other in (STOCK, NATIVE):
            if other in servers:
                line += f", {ratio(runs, clients, best, other):.2f}x {other}"
        print(line)
    if args.output:
        report = [
            {"clients": clients, "server": name, "accept_length": lengths[name], **asdict(run)}
            for (clients, name), measured in runs.items()
            for run in measured
        ]
        args.output.write_text(json.dumps(report, indent=1) + "\n")
    differing = count_differing(runs)
    # Near ties may turn over in a batch of another shape, in every run anew.
    allowed = sum(len(measured) for measured in runs.values()) * sum(r.has_near_tie for r in found)
    print(f"timed answers that differ from plain decoding's: {differing}, near ties: {allowed}")
    return 0 if differing <= allowed else 1


if __name__ == "__main__":
    sys.exit(main())
