"""Hidden states captured while training needs them, instead of a disk full of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sglang_ddtree.drafter.data.capture import answers_of, capture_group
from sglang_ddtree.drafter.data.samples import Sample
from sglang_ddtree.drafter.errors import DrafterError
from sglang_ddtree.drafter.objective.batches import Source
from sglang_ddtree.drafter.run_folder import RunFolder
from sglang_ddtree.drafter.upstream.capture_engine import CaptureEngine


@contextmanager
def online_source(
    args: argparse.Namespace, folder: RunFolder, target: str, common: dict[str, Any]
) -> Iterator[Source]:
    """The target in an engine beside the training process, which asks it for every batch.

    Raises:
        DrafterError: several processes train, or there are no answers.
    """
    if common["world"] > 1:
        raise DrafterError(
            "--online trains in one process: capture first (drafter capture) to train in several"
        )
    answers = answers_of(folder, args.limit, args.max_length)
    layer_ids = folder.drafter_config()["dflash_config"]["target_layer_ids"]
    with CaptureEngine(
        target,
        layer_ids,
        folder.path,
        args.flags,
        args.trust_remote_code,
        args.top if args.distil else 0,
    ) as engine:

        def read(indices: Any) -> list[Sample]:
            return list(capture_group([answers[i] for i in indices], engine, args.max_length))

        yield Source(read, len(answers), **common)
