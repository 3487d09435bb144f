"""``drafter train``: the drafter learns to foresee its target from hidden states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sglang_ddtree.dflash.checkpoint import DRAFT_VOCABULARY
from sglang_ddtree.drafter.errors import DrafterError
from sglang_ddtree.drafter.files import write_tensors
from sglang_ddtree.drafter.model.config import DrafterConfig
from sglang_ddtree.drafter.model.model import Drafter
from sglang_ddtree.drafter.objective.batches import Batch, Source, used_tokens
from sglang_ddtree.drafter.objective.losses import Weighting
from sglang_ddtree.drafter.objective.objective import Ends, draft_loss
from sglang_ddtree.drafter.run_folder import RunFolder
from sglang_ddtree.drafter.training.distributed import Workers, shard
from sglang_ddtree.drafter.training.loop import StepLoss, train
from sglang_ddtree.drafter.training.metrics import plot_training
from sglang_ddtree.drafter.training.optimizers import Schedule
from sglang_ddtree.drafter.training.state import Checkpoints
from sglang_ddtree.drafter.weights.load import load_drafter

NAME = "drafter"


@dataclass(frozen=True)
class TrainOptions:
    """How to train.

    Attributes:
        bfloat16: compute in bfloat16 (GPUs); weights and optimizer states stay float32.
        piece: blocks of one forward and backward pass; a step has as many passes as it takes.
    """

    schedule: Schedule
    weighting: Weighting
    bfloat16: bool = False
    piece: int = 2048


def step_loss(
    model: nn.Module,
    ends: Ends,
    config: DrafterConfig,
    weighting: Weighting,
    batch_of_step: Callable[[int], Batch],
    device: torch.device,
    piece: int = 2048,
) -> Callable[[int], Iterator[StepLoss]]:
    """The loss of a step in pieces, with hit rates by position for the log."""

    def loss_of_step(step: int) -> Iterator[StepLoss]:
        for batch in batch_of_step(step).pieces(piece):
            loss = draft_loss(model, ends, batch.to(device), config, weighting)
            yield StepLoss(loss.total, loss.weight, {"hits": (loss.hits, loss.slots)})

    return loss_of_step


def first_model(folder: RunFolder) -> Drafter:
    """The drafter as ``init`` made it.

    Raises:
        DrafterError: there is none, or its weights don't fit its config.
    """
    return load_drafter(folder.drafter, folder.drafter_config())[0]


def train_run(
    folder: RunFolder,
    target: str,
    source: Source,
    options: TrainOptions,
    group: Workers,
    draft_vocabulary: Tensor | None = None,
) -> None:
    """Train the run's drafter, resuming its newest checkpoint."""
    model = first_model(folder)
    model.to(group.device)
    shard(model, model.layers, group, options.bfloat16)
    dtype = torch.bfloat16 if options.bfloat16 else torch.float32
    ends = Ends.of(target, draft_vocabulary).place(group.device, dtype)
    folder.training.mkdir(parents=True, exist_ok=True)
    if draft_vocabulary is not None and group.leads:
        write_tensors(_vocabulary_file(folder), {DRAFT_VOCABULARY: draft_vocabulary})
    loss = step_loss(
        model, ends, model.config, options.weighting, source, group.device, options.piece
    )
    train(
        model,
        loss,
        options.schedule,
        folder.training,
        name=NAME,
        group=group,
        on_save=lambda _: plot_training(
            folder.training / f"{NAME}.jsonl", folder.training / f"{NAME}.png"
        ),
    )


def trained_weights(folder: RunFolder) -> tuple[dict[str, Tensor], Tensor | None]:
    """Weights of the newest checkpoint, and the draft vocabulary where there is one.

    Raises:
        DrafterError: nothing was trained yet.
    """
    from safetensors.torch import load_file

    try:
        weights = Checkpoints(folder.training / NAME).weights(first_model(folder))
    except FileNotFoundError as error:
        raise DrafterError(f"{error}: run 'drafter train' first") from error
    file = _vocabulary_file(folder)
    return weights, load_file(file)[DRAFT_VOCABULARY] if file.exists() else None


def _vocabulary_file(folder: RunFolder) -> Path:
    return folder.training / "draft_vocabulary.safetensors"


def draft_vocabulary_of(answers: Sequence[Mapping[str, Any]], size: int | None) -> Tensor:
    """Tokens that the answers contain, all or the ``size`` most frequent, ascending."""

    def written() -> Iterator[np.ndarray]:
        for answer in answers:
            yield np.asarray(answer["output_ids"], dtype=np.int64)

    return used_tokens(written(), size)
