"""Capture the target's hidden states at the drafter's layers, from SGLang itself.

The target runs in an offline SGLang engine; flags of SGLang's server follow after "--", e.g.
"-- --tp 8 --mem-fraction-static 0.85". How much will be written is printed first. Run the same
command again after an interruption: finished samples stay.
"""

from __future__ import annotations

import argparse

from sglang_ddtree.drafter.commands.arguments import add_run, add_target, options_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_target(parser)
    parser.add_argument("--limit", type=int, help="take the first so many answers")
    parser.add_argument("--max-length", type=int, default=4096, help="tokens of a sample")
    parser.add_argument("--batch", type=int, default=16, help="answers in the engine at a time")
    parser.add_argument("--dtype", choices=("bfloat16", "float32", "target"), default="bfloat16")
    parser.add_argument(
        "--top",
        type=int,
        default=0,
        metavar="T",
        help="keep the target's T likeliest tokens at each position, for train --distil",
    )
    parser.add_argument("--size-only", action="store_true", help="print the size and stop")
    parser.add_argument("flags", nargs="*", help="flags of SGLang's server, after --")


def run(args: argparse.Namespace) -> int:
    import torch

    from sglang_ddtree.drafter.data.capture import answers_of, capture, check_room, size_bytes
    from sglang_ddtree.drafter.data.samples import file_of
    from sglang_ddtree.drafter.errors import DrafterError
    from sglang_ddtree.drafter.run_folder import RunFolder
    from sglang_ddtree.drafter.upstream.capture_engine import CaptureEngine

    folder = RunFolder(args.folder)
    config = folder.drafter_config()
    layer_ids = config["dflash_config"]["target_layer_ids"]
    answers = answers_of(folder, args.limit, args.max_length)
    if args.top < 0:
        raise DrafterError("--top must be at least 0")
    fixed = {"layer_ids": layer_ids, "max_length": args.max_length, "dtype": args.dtype}
    fixed["top"] = args.top
    folder.keep_same("capture", fixed, options_of(args))
    folder.shards.mkdir(exist_ok=True)
    missing = [a for a in answers if not file_of(folder.shards, a).exists()]
    width = len(layer_ids) * config["hidden_size"]
    element_bytes = 4 if args.dtype == "float32" else 2
    needed = size_bytes(missing, args.max_length, width, element_bytes, args.top)
    print(check_room(folder.shards, needed))
    if args.size_only or not missing:
        return 0
    target = folder.target(args.target)
    with CaptureEngine(
        target, layer_ids, folder.path, args.flags, args.trust_remote_code, args.top
    ) as engine:
        written = capture(
            answers,
            engine,
            folder.shards,
            max_length=args.max_length,
            dtype=None if args.dtype == "target" else getattr(torch, args.dtype),
            batch=args.batch,
        )
    print(f"{folder.shards}: {written} samples written, {len(answers)} in all")
    return 0
