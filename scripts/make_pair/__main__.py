"""Command line of the package; see ``make_pair/__init__.py``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from make_pair import drafting, evaluate, export, generation, prompts, stages, tokens
from make_pair.hub import PAIRS
from make_pair.recipe import RECIPES, Recipe


def _corpus(recipe: Recipe, args: argparse.Namespace) -> None:
    if not (args.work / "tokenizer.json").exists():
        tokens.build_streams(recipe, args.work)
    args.assets.mkdir(parents=True, exist_ok=True)
    prompts.write_prompts(recipe, args.assets / "prompts.jsonl")


def _target(recipe: Recipe, args: argparse.Namespace) -> None:
    def export_now(step: int) -> None:
        if step % 200 == 0 or step == recipe.target_run.steps:
            _export_target(recipe, args)

    stages.train_target(recipe, args.work, compiled=args.compile, on_save=export_now)


def _export_target(recipe: Recipe, args: argparse.Namespace) -> None:
    model = stages.load_target(recipe, args.work)
    export.export_target(model, recipe, args.work / "tokenizer.json", args.assets / "target")


def _generate(recipe: Recipe, args: argparse.Namespace) -> None:
    generation.self_generate(recipe, args.work)


def _drafter(recipe: Recipe, args: argparse.Namespace) -> None:
    def export_now(step: int) -> None:
        if step % 200 == 0 or step == recipe.drafter_run.steps:
            _export_drafter(recipe, args)

    drafting.train_drafter(recipe, args.work, compiled=args.compile, on_save=export_now)


def _export_drafter(recipe: Recipe, args: argparse.Namespace) -> None:
    model = drafting.load_drafter(recipe, args.work)
    export.export_drafter(model, recipe, args.assets / "drafter")


def _evaluate(recipe: Recipe, args: argparse.Namespace) -> None:
    target = stages.load_target(recipe, args.work)
    drafter = drafting.load_drafter(recipe, args.work)
    table = evaluate.evaluate(target, drafter, recipe, args.assets, every=args.every)
    (args.work / "evaluation.json").write_text(json.dumps(table, indent=2) + "\n")


_STAGES: dict[str, Callable[[Recipe, argparse.Namespace], None]] = {
    "corpus": _corpus,
    "target": _target,
    "generate": _generate,
    "drafter": _drafter,
    "evaluate": _evaluate,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make_pair", description=__doc__)
    parser.add_argument("name", choices=sorted(RECIPES))
    parser.add_argument("--work", type=Path, required=True, help="checkpoints and logs go here")
    parser.add_argument("--assets", type=Path, help="folder of the pair (default: in pairs/)")
    parser.add_argument("--stage", choices=("all", *_STAGES), default="all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="evaluate on each so many-th prompt")
    parser.add_argument("--compile", action="store_true", help="use torch.compile (needs g++)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    recipe = RECIPES[args.name]
    args.assets = args.assets or PAIRS / recipe.name
    args.work.mkdir(parents=True, exist_ok=True)
    for name, stage in _STAGES.items():
        if args.stage in ("all", name):
            stage(recipe, args)


if __name__ == "__main__":
    main()
