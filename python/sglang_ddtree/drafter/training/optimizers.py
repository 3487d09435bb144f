"""Optimizers and their schedule: Muon for matrices and AdamW for the rest, or AdamW for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sglang_ddtree.drafter.training.muon import Muon32


@dataclass(frozen=True)
class Schedule:
    """One training run.

    Attributes:
        matrix_lr: peak rate of Muon, for matrices; None: AdamW for all.
        other_lr: peak rate of AdamW.
        embedding_lr: peak rate of embeddings, where they are trained; None for ``other_lr``.
        warmup: steps of linear warm-up.
        decay_share: share of the steps, at the end, in which the rate falls to zero.
        float32: keep Muon's products in single precision, for processors without bfloat16 ones.
    """

    steps: int
    matrix_lr: float | None = 0.02
    other_lr: float = 3e-3
    embedding_lr: float | None = None
    warmup: int = 40
    decay_share: float = 0.4
    save_every: int = 100
    log_every: int = 20
    clip: float = 1.0
    float32: bool = False


def rate(schedule: Schedule, step: int) -> float:
    """Share of the peak learning rate: linear warm-up, plateau, linear decay to near zero."""
    warm = min(1.0, (step + 1) / max(1, schedule.warmup))
    left = (schedule.steps - step) / max(1.0, schedule.steps * schedule.decay_share)
    return min(warm, 1.0, left)


def make_optimizers(model: nn.Module, schedule: Schedule) -> list[torch.optim.Optimizer]:
    """One or two optimizers over all parameters; groups remember their peak rate."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        matrix = parameter.dim() == 2 and not any(t in name for t in ("embed_tokens", "lm_head"))
        chosen = matrices if matrix and schedule.matrix_lr is not None else others
        chosen.append(parameter)
    groups: list[dict[str, Any]] = [{"params": others}]
    if schedule.embedding_lr is not None:
        embeddings = {id(p): p for name, p in model.named_parameters() if "embed_tokens" in name}
        groups = [{"params": [p for p in others if id(p) not in embeddings]}]
        groups.append({"params": list(embeddings.values()), "lr": schedule.embedding_lr})
    made: list[torch.optim.Optimizer] = []
    if matrices:
        assert schedule.matrix_lr is not None
        muon_class = Muon32 if schedule.float32 else torch.optim.Muon
        made.append(muon_class(matrices, lr=schedule.matrix_lr, weight_decay=0.01))
    made.append(
        torch.optim.AdamW(groups, lr=schedule.other_lr, betas=(0.9, 0.95), weight_decay=0.0)
    )
    for optimizer in made:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return made
