"""Precision of the pairs' training; the loop is the package's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sglang_ddtree.drafter.training.loop import StepLoss


def mixed_precision(*, enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled)


def mean_loss(loss: Tensor, **figures: Any) -> StepLoss:
    """A loss that is a mean already and all of its step, and figures to log beside it."""
    one = torch.ones(())
    logged = {name: (torch.as_tensor(value), one) for name, value in figures.items()}
    return StepLoss(loss, one, logged)
