"""Check a drafter's folder against its target.

Weights (all there, right shapes), heads against the tensor-parallel size, mask token, layer ids and
rope are looked at, with the checks of a server's start-up and some more. Exit status 1 with all
problems; notes are printed for you to judge.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sglang_ddtree.drafter.commands.arguments import add_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("drafter", type=Path, help="folder with config.json and safetensors")
    add_target(parser, required=True)
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel size to serve with")
    parser.add_argument("--config-only", action="store_true", help="there are no weights to check")


def run(args: argparse.Namespace) -> int:
    from sglang_ddtree.drafter.evaluation.validate import validate

    verdict = validate(
        args.drafter,
        args.target,
        tp_size=args.tp,
        config_only=args.config_only,
        trust_remote_code=args.trust_remote_code,
    )
    for problem in verdict.problems:
        print(f"problem: {problem}")
    for note in verdict.notes:
        print(f"note: {note}")
    if not verdict.problems:
        print(f"{args.drafter} fits {args.target} at tensor-parallel size {args.tp}")
    return 1 if verdict.problems else 0
