"""A resumable training loop over any number of processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sglang_ddtree.drafter.training.distributed import Workers
from sglang_ddtree.drafter.training.metrics import Log
from sglang_ddtree.drafter.training.optimizers import Schedule, make_optimizers, rate
from sglang_ddtree.drafter.training.state import Checkpoints

ALONE = Workers(0, 1, torch.device("cpu"))


@dataclass(frozen=True)
class StepLoss:
    """A piece of a step's loss: ``total / weight`` once both are summed over pieces and ranks.

    ``figures`` are logged: name to a numerator and a denominator, summed over ranks and steps.
    """

    total: Tensor
    weight: Tensor
    figures: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)


# Pieces are asked for one by one, so that only one's activations are alive at a time. Every rank
# must give as many.
LossOfStep = Callable[[int], Iterable[StepLoss]]


class Means:
    """Ratios of sums over the steps since the last line of the log."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[Tensor, Tensor]] = {}

    def add(self, name: str, numerator: Tensor, denominator: Tensor) -> None:
        before = self.sums.get(name, (torch.zeros(()), torch.zeros(())))
        self.sums[name] = (before[0] + numerator.cpu(), before[1] + denominator.cpu())

    def take(self) -> dict[str, Any]:
        found = {
            name: [round(x, 4) for x in ratio] if isinstance(ratio, list) else round(ratio, 4)
            for name, (top, bottom) in self.sums.items()
            for ratio in [(top / bottom.clamp(min=1e-9)).tolist()]
        }
        self.sums.clear()
        return found


def train(
    model: nn.Module,
    loss_of_step: LossOfStep,
    schedule: Schedule,
    folder: Path,
    *,
    name: str,
    group: Workers = ALONE,
    stop_after: int | None = None,
    on_save: Callable[[int], None] | None = None,
) -> None:
    """Train ``model`` in place for ``schedule.steps`` steps, resuming ``folder/name``.

    A run that was killed and resumed ends with the weights of a run that was not, if
    ``loss_of_step`` is a function of the step.

    Args:
        stop_after: leave after this step without a checkpoint, as a kill would.
        on_save: called with the number of steps done after each checkpoint, by one rank.
    """
    optimizers = make_optimizers(model, schedule)
    checkpoints = Checkpoints(folder / name)
    first = checkpoints.resume(model, optimizers)
    log = Log(folder / f"{name}.jsonl", first) if group.leads else None
    means, began = Means(), time.monotonic()
    for step in range(first, schedule.steps):
        set_rates(optimizers, schedule, step)
        norm = _step(model, optimizers, loss_of_step(step), schedule, group, means)
        done = step + 1
        if stop_after is not None and done >= stop_after:
            return
        saves = done % schedule.save_every == 0 or done == schedule.steps
        if log is not None and (step % schedule.log_every == 0 or saves):
            seconds = round(time.monotonic() - began, 1)
            log.write(step=step, **means.take(), norm=round(norm, 3), seconds=seconds)
        if saves:
            checkpoints.save(done, model, optimizers, group)
            if on_save is not None and group.leads:
                on_save(done)


def set_rates(optimizers: list[torch.optim.Optimizer], schedule: Schedule, step: int) -> None:
    for optimizer in optimizers:
        for parameters in optimizer.param_groups:
            parameters["lr"] = parameters["peak"] * rate(schedule, step)


def _step(
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    pieces: Iterable[StepLoss],
    schedule: Schedule,
    group: Workers,
    means: Means,
) -> float:
    """One update; returns the norm of the gradient."""
    weight = total = torch.zeros(())
    figures: dict[str, tuple[Tensor, Tensor]] = {}
    for piece in pieces:
        piece.total.backward()
        weight, total = weight + piece.weight.detach(), total + piece.total.detach()
        for name, (top, bottom) in piece.figures.items():
            before = figures.get(name, (0.0, 0.0))
            figures[name] = before[0] + top, before[1] + bottom
    weight = group.total(weight)
    for parameter in model.parameters():
        if parameter.grad is not None:
            # FSDP averages gradients over ranks, where this loss is a sum.
            parameter.grad.mul_(group.world / weight.clamp(min=1e-9))
    norm = nn.utils.clip_grad_norm_(model.parameters(), schedule.clip)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    means.add("loss", group.total(total), weight)
    for name, (top, bottom) in figures.items():
        means.add(name, group.total(top), group.total(bottom))
    whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return float(whole)
