"""Write a drafter's config.json for a target, and weights to start training from.

The drafter rotates as the target does, reads evenly spaced target layers and takes an unused token
as its mask. What SGLang could not load or capture is refused.
"""

from __future__ import annotations

import argparse
from typing import Any

from sglang_ddtree.drafter.commands.arguments import add_run, add_target, integers, options_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_target(parser, required=True)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--block", type=int, default=16, help="tokens of one draft, with its first")
    parser.add_argument(
        "--context-layers", type=int, help="target layers to read; default --layers"
    )
    parser.add_argument("--target-layers", type=integers, help="these instead, e.g. 1,8,15")
    parser.add_argument(
        "--sliding-window", type=int, metavar="TOKENS", help="of all layers but the last"
    )
    parser.add_argument("--heads", type=int)
    parser.add_argument("--kv-heads", type=int)
    parser.add_argument("--head-dim", type=int)
    parser.add_argument("--intermediate", type=int)
    parser.add_argument("--mask-token", help="an id or a token that no text contains")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--from-target",
        action="store_true",
        help="start from the target's last layers instead of random weights",
    )


def run(args: argparse.Namespace) -> int:
    import torch

    from sglang_ddtree.drafter.errors import DrafterError
    from sglang_ddtree.drafter.model import config as drafter_config
    from sglang_ddtree.drafter.model.target import read_target
    from sglang_ddtree.drafter.run_folder import RunFolder
    from sglang_ddtree.drafter.weights import initialise
    from sglang_ddtree.drafter.weights.export import write_drafter
    from sglang_ddtree.drafter.weights.mask_token import choose_mask_token

    folder = RunFolder(args.folder)
    if (folder.drafter / "config.json").exists():
        raise DrafterError(f"{args.folder} holds a drafter already: give a new --work folder")
    target = read_target(args.target, args.trust_remote_code)
    tokenizer = load_tokenizer(args)
    mask = choose_mask_token(tokenizer, target.vocab, args.mask_token)
    name = tokenizer.convert_ids_to_tokens(mask) if mask < len(tokenizer) else None
    wishes = initialise.Wishes(
        layers=args.layers,
        block=args.block,
        context_layers=args.context_layers,
        target_layer_ids=args.target_layers,
        sliding_window=args.sliding_window,
        heads=args.heads,
        kv_heads=args.kv_heads,
        head_dim=args.head_dim,
        intermediate=args.intermediate,
    )
    config = initialise.build_config(target, wishes, mask, name)
    parsed = drafter_config.from_json(config)
    weights = initialise.first_weights(parsed, args.seed)
    if args.from_target:
        last = range(target.layers - args.layers, target.layers)
        weights = initialise.copy_target_layers(weights, args.target, last)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.record("init", options_of(args))
    write_drafter(folder.drafter, config, weights, dtype=torch.float32)
    size = sum(weight.numel() for weight in weights.values())
    print(
        f"{folder.drafter}: {args.layers} layers, {size / 1e6:.1f} million parameters, block "
        f"{args.block}, reads target layers {config['dflash_config']['target_layer_ids']}, mask "
        f"token {mask} ({name or 'beyond the tokenizer'})"
    )
    return 0


def load_tokenizer(args: argparse.Namespace) -> Any:
    """The target's tokenizer, as SGLang loads it."""
    from sglang_ddtree.drafter.errors import DrafterError
    from sglang_ddtree.drafter.upstream.models import get_tokenizer

    try:
        return get_tokenizer(args.target, trust_remote_code=args.trust_remote_code)
    except (OSError, ValueError) as error:
        raise DrafterError(f"SGLang can't read the tokenizer of {args.target}: {error}") from error
