"""Train the drafter on captured hidden states, or on hidden states captured as it goes (--online).

One process, or several under torchrun:
  torchrun --nproc-per-node 8 -m sglang_ddtree.cli drafter train --work DIR ...
Run the same command again after an interruption: it goes on from the newest checkpoint, with the
same result. Loss and hit rates by position are in DIR/train/drafter.jsonl and drafter.png.
"""

from __future__ import annotations

import argparse
from typing import Any

from sglang_ddtree.drafter.commands.arguments import add_run, add_target, options_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_target(parser)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, default=8, help="texts of a step, all processes")
    parser.add_argument("--anchors", type=int, default=512, help="blocks of a text")
    parser.add_argument(
        "--piece", type=int, default=2048, help="blocks of one pass: fewer take less memory"
    )
    parser.add_argument("--lr", type=float, default=6e-4, help="peak rate of AdamW")
    parser.add_argument("--muon-lr", type=float, help="train matrices with Muon, at this rate")
    parser.add_argument("--warmup", type=int, default=100, help="steps")
    parser.add_argument("--decay-share", type=float, default=0.5, help="of the steps, at the end")
    parser.add_argument("--gamma", type=float, default=7.0, help="decay over a block's positions")
    parser.add_argument("--dpace", type=float, metavar="ALPHA", help="D-PACE weights, e.g. 0.5")
    parser.add_argument(
        "--distil",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of the loss that is taken against the target's distribution instead of the "
        "text (capture --top)",
    )
    parser.add_argument(
        "--draft-vocab",
        metavar="SIZE",
        help="propose only the so many most frequent tokens of the answers, or 'used' for all of "
        "them",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--log-every", type=int, default=20, help="steps")
    parser.add_argument("--online", action="store_true", help="capture as needed; needs no disk")
    parser.add_argument("--limit", type=int, help="take the first so many answers")
    parser.add_argument("--max-length", type=int, default=4096, help="tokens of a text (--online)")
    parser.add_argument(
        "--top", type=int, default=16, metavar="T", help="as of capture (--online --distil)"
    )
    parser.add_argument(
        "flags", nargs="*", help="with --online: flags of SGLang's server, after --"
    )


def run(args: argparse.Namespace) -> int:
    import torch

    from sglang_ddtree.drafter.errors import DrafterError
    from sglang_ddtree.drafter.run_folder import RunFolder
    from sglang_ddtree.drafter.training.distributed import workers
    from sglang_ddtree.drafter.training.train import TrainOptions, train_run

    if args.dpace is not None and not 0 < args.dpace <= 1:
        raise DrafterError("--dpace must be above 0 and at most 1")
    if not 0 <= args.distil <= 1:
        raise DrafterError("--distil must be between 0 and 1")
    if min(args.steps, args.batch, args.anchors, args.piece, args.save_every, args.log_every) < 1:
        raise DrafterError("--steps, --batch, --anchors and the intervals must be at least 1")
    folder = RunFolder(args.folder)
    target = folder.target(args.target)
    with workers() as group:
        if group.leads:
            given = options_of(args)
            unfixed = ("target", "save_every", "flags")
            fixed = {k: v for k, v in given.items() if k not in unfixed}
            folder.keep_same("train", fixed, given)
        group.wait()
        with _source(args, folder, target, group) as source:
            options = TrainOptions(
                _schedule(args), _weighting(args), torch.cuda.is_available(), args.piece
            )
            train_run(folder, target, source, options, group, _draft_vocabulary(args, folder))
    return 0


def _schedule(args: argparse.Namespace) -> Any:
    import torch

    from sglang_ddtree.drafter.training.optimizers import Schedule

    return Schedule(
        steps=args.steps,
        matrix_lr=args.muon_lr,
        other_lr=args.lr,
        warmup=args.warmup,
        decay_share=args.decay_share,
        save_every=args.save_every,
        log_every=args.log_every,
        float32=not torch.cuda.is_available(),
    )


def _weighting(args: argparse.Namespace) -> Any:
    from sglang_ddtree.drafter.objective.losses import Weighting

    return Weighting(args.gamma, args.dpace, args.distil)


def _source(args: argparse.Namespace, folder: Any, target: str, group: Any) -> Any:
    """A context that gives the batches, from files or from an engine that runs meanwhile."""
    from contextlib import nullcontext

    from sglang_ddtree.drafter.data.online import online_source
    from sglang_ddtree.drafter.data.samples import read_sample, sample_files
    from sglang_ddtree.drafter.errors import DrafterError
    from sglang_ddtree.drafter.objective.batches import Source, file_reader

    common = {
        "per_step": args.batch,
        "anchors": args.anchors,
        "seed": args.seed,
        "rank": group.rank,
        "world": group.world,
    }
    if args.online:
        return online_source(args, folder, target, common)
    files = sample_files(folder.shards)[: args.limit]
    if args.distil and read_sample(files[0]).likeliest is None:
        raise DrafterError(
            f"--distil: {folder.shards} was captured without the target's likeliest tokens: "
            "capture again, in a new --work folder, with --top 16"
        )
    return nullcontext(Source(file_reader(files), len(files), **common))


def _draft_vocabulary(args: argparse.Namespace, folder: Any) -> Any:
    from sglang_ddtree.drafter.data.generate import read_answers
    from sglang_ddtree.drafter.errors import DrafterError
    from sglang_ddtree.drafter.training.train import draft_vocabulary_of

    if args.draft_vocab is None:
        return None
    if args.draft_vocab != "used" and not args.draft_vocab.isdigit():
        raise DrafterError("--draft-vocab is a number of tokens or 'used'")
    size = None if args.draft_vocab == "used" else int(args.draft_vocab)
    return draft_vocabulary_of(read_answers(folder.answers)[: args.limit], size)
