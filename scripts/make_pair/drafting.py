"""Training of the drafter on the frozen target's hidden states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sglang_ddtree.drafter.model import config as drafter_config
from sglang_ddtree.drafter.model.model import Drafter
from sglang_ddtree.drafter.objective.batches import Batch
from sglang_ddtree.drafter.objective.losses import Weighting
from sglang_ddtree.drafter.training.loop import StepLoss, train
from sglang_ddtree.drafter.training.state import Checkpoints
from sglang_ddtree.drafter.training.train import step_loss

from . import export
from .hub import warm_drafter
from .recipe import Recipe
from .stages import AnyTarget, load_target, read_streams, target_ends
from .training import mixed_precision


def features(target: AnyTarget, recipe: Recipe, tokens: Tensor) -> Tensor:
    """Hidden states after the recipe's target layers, concatenated: ``[batch, n, K * hidden]``."""
    states = target.hidden_states(tokens)
    return torch.cat([states[layer] for layer in recipe.target_layer_ids], dim=-1)


def draft_texts(recipe: Recipe, work: Path) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Function of the step to tokens ``[sequences, sequence]`` and anchors ``[sequences, A]``."""
    streams = read_streams(work)
    own = np.load(work / "self.npy", mmap_mode="r")
    prefix = np.load(work / "self_prefix.npy")
    last = recipe.sequence - recipe.block

    def texts(step: int) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng([recipe.drafter_run.seed, step])
        rows, anchors = [], []
        for _ in range(recipe.drafter_run.batch(step)):
            if rng.random() < recipe.self_generated_share:
                index = int(rng.integers(0, len(own)))
                rows.append(own[index])
                first = int(prefix[index]) - 1
            else:
                stream = streams[int(rng.random() < recipe.stdlib_share)]
                start = int(rng.integers(0, len(stream) - recipe.sequence))
                rows.append(stream[start : start + recipe.sequence])
                first = 8
            anchors.append(rng.integers(first, last + 1, size=recipe.anchors))
        tokens = np.stack(rows).astype(np.int64)
        return torch.from_numpy(tokens), torch.from_numpy(np.stack(anchors))

    return texts


def train_drafter(
    recipe: Recipe,
    work: Path,
    *,
    compiled: bool = False,
    stop_after: int | None = None,
    on_save: Callable[[int], None] | None = None,
) -> Drafter:
    """The package's training, on hidden states of the target that runs here."""
    torch.manual_seed(recipe.drafter_run.seed)
    config = drafter_config.from_json(export.drafter_config(recipe))
    target, model = load_target(recipe, work), Drafter(config)
    if recipe.teacher:
        model.load_state_dict(warm_drafter(recipe))
    texts, ends = draft_texts(recipe, work), target_ends(target)

    def batch_of_step(step: int) -> Batch:
        tokens, anchors = texts(step)
        with torch.no_grad():
            states = features(target, recipe, tokens)
        return Batch(tokens, states, torch.ones_like(tokens).bool(), anchors, anchors >= 0)

    drafter = torch.compile(model) if compiled else model
    weighting, device = Weighting(recipe.gamma), torch.device("cpu")
    in_full = step_loss(drafter, ends, config, weighting, batch_of_step, device)

    def loss_of_step(step: int) -> list[StepLoss]:
        with mixed_precision(enabled=not recipe.drafter_run.float32):
            return list(in_full(step))

    train(
        model,
        loss_of_step,
        recipe.drafter_run,
        work,
        name="drafter",
        stop_after=stop_after,
        on_save=on_save,
    )
    return model


def load_drafter(recipe: Recipe, work: Path) -> Drafter:
    """The trained drafter with bfloat16-rounded weights, in float32."""
    model = Drafter(drafter_config.from_json(export.drafter_config(recipe)))
    state = Checkpoints(work / "drafter").weights(model)
    model.load_state_dict({name: w.bfloat16().float() for name, w in state.items()})
    return model.eval().requires_grad_(False)
