"""Write the trained drafter as SGLang's DFlashDraftModel loads it, and check it.

With --from, a checkpoint in the format of the speculators library is converted instead.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sglang_ddtree.drafter.commands.arguments import add_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--work", type=Path, dest="folder", help="the run's folder")
    source.add_argument("--from", type=Path, dest="source", help="a speculators checkpoint")
    add_target(parser)
    parser.add_argument("--output", type=Path, help="folder to write; default DIR/drafter")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")


def run(args: argparse.Namespace) -> int:
    from sglang_ddtree.drafter.errors import DrafterError
    from sglang_ddtree.drafter.evaluation.validate import validate

    output, target = _convert(args) if args.source else _export_run(args)
    verdict = validate(output, target, trust_remote_code=args.trust_remote_code)
    for note in verdict.notes:
        print(f"note: {note}")
    if verdict.problems:
        raise DrafterError(f"{output} was written, but: " + "; ".join(verdict.problems))
    print(f"{output} fits {target}")
    return 0


def _convert(args: argparse.Namespace) -> tuple[Path, str]:
    from sglang_ddtree.dflash.checkpoint import expected_tensors
    from sglang_ddtree.drafter.errors import DrafterError
    from sglang_ddtree.drafter.evaluation.validate import read_config
    from sglang_ddtree.drafter.files import write_json, write_tensors
    from sglang_ddtree.drafter.model.target import read_target
    from sglang_ddtree.drafter.weights.convert import from_speculators, is_speculators
    from sglang_ddtree.drafter.weights.load import read_weights

    if not (args.target and args.output):
        raise DrafterError("--from needs --target and --output")
    config = read_config(args.source)
    if not is_speculators(config):
        raise DrafterError(f"{args.source} is no speculators checkpoint: SGLang may load it as is")
    layers = read_target(args.target, args.trust_remote_code).layers
    config = from_speculators(config, layers)
    wanted = expected_tensors(config, len(config["dflash_config"]["target_layer_ids"]))
    weights = read_weights(args.source)
    tensors = {name: tensor for name, tensor in weights.items() if name in wanted}
    write_tensors(args.output / "model.safetensors", tensors)
    write_json(args.output / "config.json", config)
    return args.output, args.target


def _export_run(args: argparse.Namespace) -> tuple[Path, str]:
    import torch

    from sglang_ddtree.drafter.run_folder import RunFolder
    from sglang_ddtree.drafter.training.train import trained_weights
    from sglang_ddtree.drafter.weights.export import write_drafter

    folder = RunFolder(args.folder)
    weights, vocabulary = trained_weights(folder)
    output = args.output or folder.exported
    write_drafter(
        output,
        folder.drafter_config(),
        weights,
        dtype=getattr(torch, args.dtype),
        draft_vocabulary=vocabulary,
    )
    return output, folder.target(args.target)
