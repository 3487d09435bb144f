"""Solve for the drafter's first weights by least squares on captured texts, before it is trained.

Its first layer then guesses the target's hidden state from the last one before the anchor and the
anchor's embedding, and the layers after it are the target's last ones. Worth it for every short
run. It needs a drafter of 1 + n layers that reads, last, the target layer before the target's last
n, and a target whose last layers are plain attention.
"""

from __future__ import annotations

import argparse

from sglang_ddtree.drafter.commands.arguments import add_run, add_target, options_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_target(parser)
    parser.add_argument("--texts", type=int, default=500, help="captured texts to fit to")
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> int:
    import numpy as np
    import torch

    from sglang_ddtree.drafter.data.samples import read_sample, sample_files
    from sglang_ddtree.drafter.errors import DrafterError
    from sglang_ddtree.drafter.model import config as drafter_config
    from sglang_ddtree.drafter.model.model import Drafter
    from sglang_ddtree.drafter.model.target import read_target
    from sglang_ddtree.drafter.objective.objective import Ends
    from sglang_ddtree.drafter.run_folder import RunFolder
    from sglang_ddtree.drafter.training.fit import fit, tail_of
    from sglang_ddtree.drafter.weights.export import write_drafter
    from sglang_ddtree.drafter.weights.initialise import first_weights

    if args.texts < 1:
        raise DrafterError("--texts must be at least 1")
    folder = RunFolder(args.folder)
    config = folder.drafter_config()
    target = read_target(folder.target(args.target), args.trust_remote_code)
    parsed = drafter_config.from_json(config)
    tail_of(parsed, target)
    if folder.training.exists():
        raise DrafterError(
            f"{folder.training} was begun from other weights: fit before you train, in a new "
            "--work folder"
        )
    files = sample_files(folder.shards)
    chosen = np.random.default_rng(args.seed).permutation(len(files))[: args.texts]
    model = Drafter(parsed)
    model.load_state_dict(first_weights(parsed, args.seed))
    ends = Ends.of(target.path).place(torch.device("cpu"), torch.float32)
    missed = fit(model, target, ends, [read_sample(files[i]) for i in chosen], args.seed)
    folder.record("fit", {**options_of(args), "missed": missed})
    write_drafter(folder.drafter, config, model.state_dict(), dtype=torch.float32)
    print(
        f"{folder.drafter}: fitted to {len(chosen)} texts; the first layer's guess misses "
        f"{missed:.3f} of the target's hidden states"
    )
    return 0
