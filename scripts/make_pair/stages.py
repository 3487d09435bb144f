"""The stages that make a pair; each reads and writes plain files in the work folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sglang_ddtree.drafter.objective.objective import Ends
from sglang_ddtree.drafter.training.loop import StepLoss, train
from sglang_ddtree.drafter.training.state import Checkpoints

from . import tokens
from .hub import HubTarget, load_teacher, warm_start
from .model import Target
from .recipe import Recipe
from .training import mean_loss, mixed_precision

AnyTarget = Target | HubTarget
LossOfWindow = Callable[[Tensor], StepLoss]


def read_streams(work: Path) -> tuple[np.ndarray, np.ndarray]:
    return np.load(work / "generated.npy"), np.load(work / "stdlib.npy")


def new_target(recipe: Recipe) -> AnyTarget:
    return Target(recipe.target) if recipe.architecture == "dense" else HubTarget(recipe)


def train_target(
    recipe: Recipe,
    work: Path,
    *,
    compiled: bool = False,
    stop_after: int | None = None,
    on_save: Callable[[int], None] | None = None,
) -> AnyTarget:
    """Training on windows of the packed streams: by next tokens, or in a teacher's image."""
    torch.manual_seed(recipe.target_run.seed)
    streams, model = read_streams(work), new_target(recipe)
    if recipe.teacher:
        sample = torch.from_numpy(tokens.target_batch(streams, recipe, 0, 4))
        loss_of_window = _imitation(model, recipe, sample)
    else:
        loss_of_window = _next_token(model, compiled)

    def loss_of_step(step: int) -> list[StepLoss]:
        window = tokens.target_batch(streams, recipe, step, recipe.target_run.batch(step))
        with mixed_precision(enabled=not recipe.target_run.float32):
            return [loss_of_window(torch.from_numpy(window))]

    train(
        model,
        loss_of_step,
        recipe.target_run,
        work,
        name="target",
        stop_after=stop_after,
        on_save=on_save,
    )
    return model


def _next_token(model: AnyTarget, compiled: bool) -> LossOfWindow:
    def window_loss(window: Tensor) -> Tensor:
        logits = model.logits(model.hidden_states(window[:, :-1]))
        return F.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())

    loss_function: Callable[[Tensor], Tensor] = (
        torch.compile(window_loss) if compiled else window_loss
    )
    return lambda window: mean_loss(loss_function(window))


def _imitation(model: AnyTarget, recipe: Recipe, sample: Tensor) -> LossOfWindow:
    """Divergence from the teacher's distributions, and distance from its residual stream.

    The distance is relative, layer by layer, so that the layers the drafter reads come out as
    those that the teacher's drafter has learnt to read.
    """
    assert isinstance(model, HubTarget)
    teacher = load_teacher(recipe)
    warm_start(model, teacher, sample)

    def window_loss(window: Tensor) -> StepLoss:
        with torch.no_grad():
            wanted = teacher.hidden_states(window[:, :-1])
            wanted_log_probs = teacher.logits(wanted).float().log_softmax(-1)
        states = model.hidden_states(window[:, :-1])
        log_probs = model.logits(states).float().log_softmax(-1)
        divergence = F.kl_div(log_probs, wanted_log_probs, log_target=True, reduction="none")
        apart = [_distance(s, w) for s, w in zip(states[:-1], wanted[:-1], strict=True)]
        loss = divergence.sum(-1).mean() + torch.stack(apart).sum()
        nll = F.nll_loss(log_probs.detach().flatten(0, 1), window[:, 1:].flatten())
        return mean_loss(loss, nll=nll, apart=torch.stack(apart).detach())

    return window_loss


def _distance(states: Tensor, wanted: Tensor) -> Tensor:
    return (states - wanted).square().mean() / wanted.square().mean()


def load_target(recipe: Recipe, work: Path) -> AnyTarget:
    """The trained target with its weights rounded to bfloat16, as it is shipped, in float32."""
    model = new_target(recipe)
    state = Checkpoints(work / "target").weights(model)
    model.load_state_dict({name: w.bfloat16().float() for name, w in state.items()})
    return model.eval().requires_grad_(False)


def target_ends(target: AnyTarget) -> Ends:
    """The target's embedding and head, as the drafter's trainer takes them."""
    if isinstance(target, Target):
        table = target.model.embed_tokens.weight
        return Ends(table, table)
    embedding = target.causal.get_input_embeddings()
    scale = float(getattr(embedding, "scalar_embed_scale", 1.0))
    return Ends(embedding.weight, target.causal.lm_head.weight, scale)
