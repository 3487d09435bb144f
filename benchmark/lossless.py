"""Greedy output of DDTREE against plain decoding, token by token, on real servers.

    scripts/run.sh python benchmark/lossless.py --pair tiny-dense

Every tree server answers the same held-out prompts as a server without speculation of the same
build: one client and many, with an empty radix cache and with one that holds the prompts. Exits
with 1 where a token differs, other than at a near tie of the target (see ``common/equality.py``),
or where near ties excuse more than 0.1 % of the continuations. For a target with experts, their
choice is compared between batch shapes first (see ``common/routing.py``).
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Sequence

from common.arguments import integers, parser
from common.equality import Reference, Tally, accept_length, references, tally
from common.pairs import Pair
from common.routing import check_routing, has_experts
from common.server import Server, tree_flags

MAX_EXCUSED_SHARE = 1e-3
QUICK = {
    "prompts": 8,
    "max_new_tokens": 48,
    "budgets": [31],
    "page_sizes": [16],
    "concurrency": [1, 8],
}


def parse_args() -> argparse.Namespace:
    made = parser(str(__doc__).splitlines()[0])
    made.add_argument("--prompts", type=int, default=50, help="held-out prompts")
    made.add_argument("--max-new-tokens", type=int, default=128)
    made.add_argument("--budgets", type=integers, default="1,7,15,31,63,127")
    made.add_argument("--page-sizes", type=integers, default="1,16")
    made.add_argument("--concurrency", type=integers, default="1,8")
    made.add_argument("--quick", action="store_true", help=f"instead of the above: {QUICK}")
    args = made.parse_args()
    if args.quick:
        vars(args).update(QUICK)
    return args


def flags_of(pair: Pair, page_size: int) -> list[str]:
    """Flags of every server that is compared."""
    return [*pair.flags, "--page-size", str(page_size)]


def measure_plain(
    args: argparse.Namespace, page_size: int, found: list[Reference] | None
) -> list[Reference]:
    """Plain decoding of every prompt, on the first page size by itself, then on each under load.

    What one client read on the first page size is the reference of all servers, plain ones on
    other page sizes too.
    """
    prompts = [record["prompt"] for record in args.pair.prompts(args.prompts)]
    with Server(args.pair.target, flags_of(args.pair, page_size)) as server:
        if found is None:
            found = references(server, prompts, args.max_new_tokens)
        under_load = [(max(args.concurrency), "warm")]
        compare_passes(server, found, args, f"plain       page {page_size:>2}", under_load)
    return found


def compare_passes(
    server: Server,
    found: Sequence[Reference],
    args: argparse.Namespace,
    name: str,
    passes: Iterable[tuple[int, str]],
) -> Tally:
    """Passes ``(clients, cache)`` over the prompts on one server: a line each, and their sum."""
    total = Tally()
    prompts = [reference.prompt for reference in found]
    for clients, cache in passes:
        if cache == "cold":
            server.flush_cache()
        answers = server.generate_all(
            prompts, clients, max_new_tokens=args.max_new_tokens, ignore_eos=True
        )
        length = accept_length(answers)
        one = tally(found, [answer["output_ids"] for answer in answers])
        infos = [answer["meta_info"] for answer in answers]
        cached = sum(i["cached_tokens"] for i in infos) / sum(i["prompt_tokens"] for i in infos)
        speculation = f"accept length {length:.2f}" if length else "no speculation"
        print(
            f"{name}  clients {clients:>2}  {cache} ({cached:4.0%} of prompts cached)  "
            f"{one.tokens:>6} tokens equal  {one.differing} differing  {one.excused} excused  "
            f"{speculation}",
            flush=True,
        )
        total += one
    return total


def check_tree(
    pair: Pair, budget: int, page_size: int, found: Sequence[Reference], args: argparse.Namespace
) -> Tally:
    """One tree server against plain decoding."""
    with Server(pair.target, [*tree_flags(pair, budget), *flags_of(pair, page_size)]) as server:
        passes = itertools.product(args.concurrency, ("cold", "warm"))
        name = f"budget {budget:>3}  page {page_size:>2}"
        return compare_passes(server, found, args, name, passes)


def main() -> int:
    args = parse_args()
    routing = None
    if has_experts(args.pair):
        routing = check_routing(args.pair, [r["prompt"] for r in args.pair.prompts(args.prompts)])
        print(routing, flush=True)
    total = Tally()
    found = None
    for page_size in args.page_sizes:
        found = measure_plain(args, page_size, found)
        for budget in args.budgets:
            total += check_tree(args.pair, budget, page_size, found, args)
    share = total.excused / total.continuations
    lossless = total.differing == 0 and share <= MAX_EXCUSED_SHARE
    lossless = lossless and (routing is None or routing.differing == 0)
    print(
        f"{'LOSSLESS' if lossless else 'NOT LOSSLESS'}: {total.continuations} continuations, "
        f"{total.tokens} tokens equal, {total.differing} continuations differ, {total.excused} "
        f"excused by a near tie ({share:.2%}, at most {MAX_EXCUSED_SHARE:.1%})"
    )
    return 0 if lossless else 1


if __name__ == "__main__":
    sys.exit(main())
