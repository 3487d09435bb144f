"""A seeded mix of many requests, good and bad, against a DDTREE server.

    scripts/run.sh python benchmark/soak.py --pair tiny-dense --requests 100000 --state soak.json

Lengths, sampling, n, batches, streams, stops, readers that leave, aborts, sessions, pauses,
flushes, weight updates with the same weights and bad requests, on a KV pool so small that requests
are retracted. Every Nth answer is compared with plain decoding of the same build. After every round
the server must be idle, and at the end hold no more processes, file handles, KV slots and memory
than after its first round. With ``--state`` a soak that was ended goes on where it was; a server
that dies is a fault, and another is started. Exits with 1 where anything was wrong.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from common.arguments import parser
from common.pairs import Pair
from common.server import Server, ServerError, tree_flags
from soaking import census
from soaking.mix import WEIGHTS, Mix
from soaking.oracle import Oracle
from soaking.report import render
from soaking.run import Soak
from soaking.state import State

COMMON = ("--context-length", "500", "--random-seed", "7", "--enable-deterministic-inference")
# Prompts come in chunks, a few requests fill the pool, and more than fit are let in.
SMALL = ("--page-size", "16", "--chunked-prefill-size", "64", "--max-total-tokens", "2048")
SMALL = (*SMALL, "--schedule-conservativeness", "0.3")
# SGLang accounts for every KV slot after each batch and when it is idle, and stops on a leak.
ENV = {
    "OMP_NUM_THREADS": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
}
MAX_DEATHS = 20


def kinds(text: str) -> list[str]:
    """Kinds of calls separated by commas."""
    names = [name for name in text.split(",") if name]
    if unknown := set(names) - set(WEIGHTS):
        raise argparse.ArgumentTypeError(f"no kinds {sorted(unknown)}; there are {list(WEIGHTS)}")
    return sorted(names)


def parse_args() -> argparse.Namespace:
    made = parser(str(__doc__).splitlines()[0])
    made.add_argument("--requests", type=int, default=1000, help="until so many are done")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--clients", type=int, default=16, help="requests in flight")
    made.add_argument("--round", type=int, default=250, help="requests between two idle moments")
    made.add_argument("--every", type=int, default=5, help="compare each answer of that number")
    made.add_argument("--budget", type=int, default=31, help="of the tree")
    made.add_argument("--without", type=kinds, default="", help=f"of {', '.join(WEIGHTS)}")
    made.add_argument(
        "--no-fatal", action="store_true", help="no bad request that ends a plain SGLang server"
    )
    made.add_argument("--url", help="soak this server of the pair instead of one started here")
    made.add_argument("--plain-url", help="compare with this one")
    made.add_argument("--state", type=Path, help="JSON file to go on from and to keep up to date")
    made.add_argument("--report", type=Path, help="Markdown file")
    made.add_argument("flags", nargs="*", help="further flags of the tree server, after --")
    return made.parse_args()


def tree_server(pair: Pair, budget: int, flags: list[str]) -> Server:
    """The server that is soaked: a tree on a small pool."""
    return Server(pair.target, [*tree_flags(pair, budget), *COMMON, *SMALL, *flags], ENV)


def soak(args: argparse.Namespace, state: State) -> None:
    """Rounds until ``args.requests`` are done, with as many servers as it takes."""
    mix = Mix(args.pair, args.seed, args.without, fatal=not args.no_fatal)
    oracle = Oracle()
    with ExitStack() as stack:
        plain_url = args.plain_url
        if plain_url is None:
            plain = Server(args.pair.target, [*args.pair.flags, *COMMON], ENV)
            plain_url = stack.enter_context(plain).url
        deaths = 0
        while state.done < args.requests and deaths <= MAX_DEATHS:
            if args.url is not None:
                pid = census.listener(urlsplit(args.url).port or 80)
                one = Soak(mix, oracle, state, args.clients, args.every, lambda: True)
                run_life(one, args, args.url, plain_url, pid)
                continue
            with tree_server(args.pair, args.budget, args.flags) as server:
                one = Soak(mix, oracle, state, args.clients, args.every, server.is_alive)
                run_life(one, args, server.url, plain_url, server.pid)
                if not server.is_alive():
                    deaths += 1
                    state.fault(f"the server died before call {state.done}: {server.log()[-3000:]}")


def run_life(one: Soak, args: argparse.Namespace, url: str, plain_url: str, pid: int | None):
    """Rounds on one server, until all is done or it has died."""
    state = one.state
    state.lives.append([])
    while one.is_alive() and state.done < args.requests:
        one.round(url, plain_url, pid, min(args.round, args.requests - state.done))
        if args.state:
            state.save(args.state)
        rate = state.done / state.seconds
        print(
            f"{state.done:>7} calls  {rate:5.1f}/s  {state.counts['compared']} compared  "
            f"{state.counts['different']} differ  {state.counts['faults']} faults",
            flush=True,
        )
    one.check_life()


def main() -> int:
    args = parse_args()
    names = ("seed", "without", "no_fatal", "every", "budget", "flags")
    options = {"pair": args.pair.name, **{name: getattr(args, name) for name in names}}
    try:
        state = State.load(args.state, options) if args.state else State(options)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    try:
        soak(args, state)
    except ServerError as error:
        state.fault(str(error)[-3000:])
    text = render(state)
    if args.state:
        state.save(args.state)
    if args.report:
        args.report.write_text(text)
    print(text)
    return 1 if state.counts["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
