"""What the drafter is worth on texts of the served target, before it is served itself.

The served target answers held-out prompts at each temperature. Its hidden states of these texts are
captured, and the drafter proposes at every position: hit rates by position and rank, and tokens per
step of the chain and of trees, as serving the pair would give. Prompt look-up stands beside
them. Table, JSON and PNG; flags of SGLang's server for the capture follow after "--".
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sglang_ddtree.drafter.commands.arguments import (
    add_run,
    add_target,
    integers,
    numbers,
    options_of,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_target(parser)
    parser.add_argument("--drafter", type=Path, help="default DIR/drafter, the exported one")
    parser.add_argument("--prompts", type=Path, required=True, help="held-out ones, a JSONL file")
    parser.add_argument("--server", required=True, help="the served target, with or without DDTREE")
    parser.add_argument("--limit", type=int, help="take the first so many prompts")
    parser.add_argument("--temperatures", type=numbers, default=(0.0, 0.7, 1.0))
    parser.add_argument("--budgets", type=integers, default=(7, 15, 31, 63))
    parser.add_argument("--topk", type=int, default=8, help="candidates of each depth")
    parser.add_argument("--max-tokens", type=int, default=256, help="of an answer")
    parser.add_argument("--max-length", type=int, default=4096, help="tokens of a text")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="folder for results; default DIR/eval")
    parser.add_argument("flags", nargs="*", help="flags of SGLang's server, after --")


def run(args: argparse.Namespace) -> int:
    from sglang_ddtree.drafter.data.capture import usable
    from sglang_ddtree.drafter.data.generate import generate, orders_of, read_answers
    from sglang_ddtree.drafter.data.openai_client import Client
    from sglang_ddtree.drafter.data.prompts import digest, read_prompts
    from sglang_ddtree.drafter.errors import DrafterError
    from sglang_ddtree.drafter.evaluation.evaluate import evaluate, plot, report
    from sglang_ddtree.drafter.evaluation.validate import read_config
    from sglang_ddtree.drafter.files import write_json
    from sglang_ddtree.drafter.run_folder import RunFolder
    from sglang_ddtree.drafter.upstream.capture_engine import CaptureEngine

    if args.topk < 1:
        raise DrafterError("--topk must be at least 1")
    folder = RunFolder(args.folder)
    output = args.output or folder.path / "eval"
    answers_file = output / "answers.jsonl"
    target, drafter = folder.target(args.target), args.drafter or folder.exported
    config = read_config(drafter)
    orders = orders_of(read_prompts(args.prompts, args.limit), args.temperatures, args.seed)
    fixed = {"prompts": digest(args.prompts), "max_tokens": args.max_tokens, "seed": args.seed}
    RunFolder(output).keep_same("eval", fixed, options_of(args))
    generate(
        orders,
        Client(args.server),
        answers_file,
        concurrency=args.concurrency,
        max_tokens=args.max_tokens,
    )
    wanted = {order.key for order in orders}
    answers = [a for a in usable(read_answers(answers_file), args.max_length) if a["key"] in wanted]
    if not answers:
        raise DrafterError("the target wrote nothing to evaluate on")
    layer_ids = config["dflash_config"]["target_layer_ids"]
    with CaptureEngine(target, layer_ids, output, args.flags, args.trust_remote_code) as engine:
        results = evaluate(
            drafter,
            target,
            answers,
            engine,
            budgets=args.budgets,
            topk=args.topk,
            max_length=args.max_length,
        )
    write_json(output / "results.json", results)
    plot(results, output / "results.png")
    print(report(results))
    print(f"\nThe chain is budget {config['block_size'] - 1}; {output}/results.json, results.png")
    return 0
