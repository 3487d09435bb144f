"""The stages that make a pair; each reads and writes plain files in the work folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from . import tokens
from .model import Target
from .recipe import Recipe
from .training import train


def mixed_precision() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def read_streams(work: Path) -> tuple[np.ndarray, np.ndarray]:
    return np.load(work / "generated.npy"), np.load(work / "stdlib.npy")


def train_target(
    recipe: Recipe, work: Path, *, compiled: bool = False, stop_after: int | None = None
) -> Target:
    """Next-token training on windows of the packed streams."""
    torch.manual_seed(recipe.target_run.seed)
    streams, model = read_streams(work), Target(recipe.target)

    def window_loss(window: Tensor) -> Tensor:
        logits = model.logits(model.hidden_states(window[:, :-1]))
        return F.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())

    loss_function: Callable[[Tensor], Tensor] = (
        torch.compile(window_loss) if compiled else window_loss
    )

    def loss_of_step(step: int) -> tuple[Tensor, dict[str, Any]]:
        window = tokens.target_batch(streams, recipe, step, recipe.target_run.batch(step))
        with mixed_precision():
            return loss_function(torch.from_numpy(window)), {}

    train(model, loss_of_step, recipe.target_run, work, name="target", stop_after=stop_after)
    return model


def load_target(recipe: Recipe, work: Path) -> Target:
    """The trained target with its weights rounded to bfloat16, as it is shipped, in float32."""
    model = Target(recipe.target)
    state = torch.load(work / "target.pt", weights_only=True)["model"]
    model.load_state_dict({name: w.bfloat16().float() for name, w in state.items()})
    return model.eval().requires_grad_(False)
