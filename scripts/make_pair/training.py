"""A resumable training loop: Muon for matrices, AdamW for the rest, JSONL log, atomic checkpoints.

The batch of a step is a function of (seed, step), so a run that was killed and resumed from its
last checkpoint ends with the weights of a run that was not.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .muon import Muon32
from .recipe import Schedule

LossFunction = Callable[[int], tuple[Tensor, dict[str, Any]]]


def rate(schedule: Schedule, step: int) -> float:
    """Share of the peak learning rate: linear warm-up, plateau, linear decay to near zero."""
    warm = min(1.0, (step + 1) / schedule.warmup)
    left = (schedule.steps - step) / max(1.0, schedule.steps * schedule.decay_share)
    return min(warm, 1.0, left)


def mixed_precision(*, enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled)


def make_optimizers(model: nn.Module, schedule: Schedule) -> list[torch.optim.Optimizer]:
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        matrix = parameter.dim() == 2 and not any(t in name for t in ("embed_tokens", "lm_head"))
        (matrices if matrix else others).append(parameter)
    muon_class = Muon32 if schedule.float32 else torch.optim.Muon
    muon = muon_class(matrices, lr=schedule.matrix_lr, weight_decay=0.01)
    groups = [{"params": others}]
    if schedule.embedding_lr is not None:
        embeddings = {id(p): p for name, p in model.named_parameters() if "embed_tokens" in name}
        groups = [{"params": [p for p in others if id(p) not in embeddings]}]
        groups.append({"params": list(embeddings.values()), "lr": schedule.embedding_lr})
    adam = torch.optim.AdamW(groups, lr=schedule.other_lr, betas=(0.9, 0.95), weight_decay=0.0)
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return [muon, adam]


def save_atomically(state: object, path: Path) -> None:
    temporary = path.with_suffix(".partial")
    torch.save(state, temporary)
    os.replace(temporary, path)


class Log:
    """JSONL of training figures; on resume, lines after the checkpoint are dropped."""

    def __init__(self, path: Path, first_step: int) -> None:
        self.path = path
        kept = []
        if path.exists():
            lines = path.read_text().splitlines()
            kept = [line for line in lines if json.loads(line)["step"] < first_step]
        path.write_text("".join(line + "\n" for line in kept))

    def write(self, **figures: Any) -> None:
        line = json.dumps(figures)
        with self.path.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)


def train(
    model: nn.Module,
    loss_of_step: LossFunction,
    schedule: Schedule,
    folder: Path,
    *,
    name: str,
    stop_after: int | None = None,
    on_save: Callable[[int], None] | None = None,
) -> None:
    """Train ``model`` in place for ``schedule.steps`` steps, resuming ``folder/name.pt``.

    Args:
        loss_of_step: step to (scalar loss, figures to log).
        stop_after: leave after this step without a checkpoint, as a kill would.
        on_save: called with the number of steps done after each checkpoint.
    """
    optimizers = make_optimizers(model, schedule)
    path, first = folder / f"{name}.pt", 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        first = state["step"]
    log, began = Log(folder / f"{name}.jsonl", first), time.monotonic()
    for step in range(first, schedule.steps):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * rate(schedule, step)
        loss, figures = loss_of_step(step)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0 or step == schedule.steps - 1:
            seconds = round(time.monotonic() - began, 1)
            log.write(
                step=step,
                loss=round(loss.item(), 4),
                norm=round(float(norm), 3),
                seconds=seconds,
                **figures,
            )
        done = step + 1
        if stop_after is not None and done >= stop_after:
            return
        if done % schedule.save_every == 0 or done == schedule.steps:
            states = [optimizer.state_dict() for optimizer in optimizers]
            save_atomically({"model": model.state_dict(), "optimizers": states, "step": done}, path)
            if on_save is not None:
                on_save(done)
