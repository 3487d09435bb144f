"""Checkpoints of a training run with torch.distributed.checkpoint, one folder a step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from sglang_ddtree.drafter.training.distributed import Workers


class Checkpoints:
    """``FOLDER/step-N``; a folder with another name is of a save that was cut off.

    Batches follow from the step, so the step is the position in the data; the generator's state
    is kept for whatever else may draw.
    """

    def __init__(self, folder: Path, kept: int = 2) -> None:
        self.folder, self.kept = folder, kept

    def finished(self) -> list[int]:
        """Steps with a whole checkpoint, ascending."""
        names = [path.name for path in self.folder.glob("step-*") if path.suffix != ".partial"]
        return sorted(int(name.removeprefix("step-")) for name in names)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def save(
        self,
        step: int,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        group: Workers,
    ) -> None:
        """Write the state after ``step`` steps, then drop the oldest checkpoints."""
        weights, states = get_state_dict(model, list(optimizers))
        partial = self.path(step).with_suffix(".partial")
        if group.leads:
            shutil.rmtree(partial, ignore_errors=True)
        group.wait()
        state = {
            "model": weights,
            "optimizer": states,
            "progress": {"step": step, "generator": torch.get_rng_state()},
        }
        save(state, checkpoint_id=partial)
        if group.leads:
            os.replace(partial, self.path(step))
            for old in self.finished()[: -self.kept]:
                shutil.rmtree(self.path(old))
        group.wait()

    def resume(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> int:
        """Load the newest checkpoint; returns the steps done, 0 without one."""
        if not self.finished():
            return 0
        weights, states = get_state_dict(model, list(optimizers))
        state: dict[str, Any] = {
            "model": weights,
            "optimizer": states,
            "progress": {"step": 0, "generator": torch.get_rng_state()},
        }
        load(state, checkpoint_id=self.path(self.finished()[-1]))
        set_state_dict(
            model,
            list(optimizers),
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        torch.set_rng_state(state["progress"]["generator"])
        return int(state["progress"]["step"])

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        """The newest checkpoint's weights, whole, read by this process alone.

        Raises:
            FileNotFoundError: there is none.
        """
        if not self.finished():
            raise FileNotFoundError(f"{self.folder} holds no checkpoint")
        state = {"model": dict(model.state_dict())}
        load(state, checkpoint_id=self.path(self.finished()[-1]), no_dist=True)
        return state["model"]
