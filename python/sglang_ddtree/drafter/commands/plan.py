"""Memory, disk and time of making a drafter, before anything is started.

For a known target (kimi-k2.6, qwen3-8b, ...) or a folder. Rates are assumptions: give your own.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="NAME|PATH")
    parser.add_argument("--draft-model-path", help="a drafter of the shape that is to be made")
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--prompt", type=int, default=500, help="tokens, on average")
    parser.add_argument("--answer", type=int, default=1500, help="tokens, on average")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--anchors", type=int, default=512, help="blocks of a sample")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--gpu-memory", type=float, default=102.6, metavar="GB", help="of a card")
    parser.add_argument("--disk", type=float, default=4000, metavar="GB", help="free for features")
    parser.add_argument("--generate-rate", type=float, default=1000, metavar="TOK/S")
    parser.add_argument("--capture-rate", type=float, default=5000, metavar="TOK/S")
    parser.add_argument("--tflops", type=float, default=150, help="a card sustains in training")


def run(args: argparse.Namespace) -> int:
    from sglang_ddtree.cluster.facts.config_facts import ConfigError
    from sglang_ddtree.cluster.facts.model_facts import model_facts
    from sglang_ddtree.drafter.errors import DrafterError
    from sglang_ddtree.drafter.evaluation.arithmetic import Job, calculate, report

    job = Job(
        samples=args.samples,
        prompt=args.prompt,
        answer=args.answer,
        epochs=args.epochs,
        anchors=args.anchors,
        gpus=args.gpus,
        gpu_memory=int(args.gpu_memory * 1e9),
        disk=int(args.disk * 1e9),
        generate_rate=args.generate_rate,
        capture_rate=args.capture_rate,
        flops=args.tflops * 1e12,
    )
    if min(vars(job).values()) <= 0:
        raise DrafterError("all amounts and rates must be positive")
    try:
        model = model_facts(args.model, args.draft_model_path)
    except (ConfigError, KeyError) as error:
        raise DrafterError(error.args[0]) from error
    print(report(model, job, calculate(model, job)))
    return 0
