"""Let the served target answer prompts, and keep the exact token ids.

Start the target with SGLang as you serve it, then give its address here. The prompts are a JSONL
file of {"messages": [...]} or {"prompt": "..."} lines. Run the same command again after an
interruption: what is answered stays answered.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from sglang_ddtree.drafter.commands.arguments import add_run, numbers, options_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--prompts", type=Path, required=True, help="a JSONL file")
    parser.add_argument("--server", required=True, help="e.g. http://127.0.0.1:30000")
    parser.add_argument("--limit", type=int, help="take the first so many prompts")
    parser.add_argument("--temperatures", type=numbers, default=(0.0,), help="e.g. 0,0.7,1")
    parser.add_argument("--max-tokens", type=int, default=512, help="of an answer")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--retries", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> int:
    from sglang_ddtree.drafter.data.generate import generate, orders_of, read_answers
    from sglang_ddtree.drafter.data.openai_client import Client
    from sglang_ddtree.drafter.data.prompts import digest, read_prompts
    from sglang_ddtree.drafter.errors import DrafterError
    from sglang_ddtree.drafter.run_folder import RunFolder

    if args.concurrency < 1 or args.max_tokens < 2:
        raise DrafterError("--concurrency must be at least 1 and --max-tokens at least 2")
    folder = RunFolder(args.folder)
    orders = orders_of(read_prompts(args.prompts, args.limit), args.temperatures, args.seed)
    # What must not change between the sittings of one run; the rest (server, limit) may.
    fixed = {
        "prompts": digest(args.prompts),
        "max_tokens": args.max_tokens,
        "seed": args.seed,
    }
    folder.keep_same("generate", fixed, options_of(args))
    client = Client(args.server, args.retries, os.environ.get("OPENAI_API_KEY"))
    outcome = generate(
        orders,
        client,
        folder.answers,
        concurrency=args.concurrency,
        max_tokens=args.max_tokens,
    )
    answers = read_answers(folder.answers)
    tokens = sum(len(answer["output_ids"]) for answer in answers)
    print(f"{folder.answers}: {len(answers)} answers, {tokens} tokens of the target's")
    if outcome.refused:
        print(f"the server refused {outcome.refused} prompts, first with {outcome.first_refusal}")
    return 0
