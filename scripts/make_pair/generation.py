"""Text the target writes itself, on which its drafter is trained.

Prefixes are windows of the training streams; the target continues them greedily and at the
temperatures users sample with, so that the drafter learns the distributions it will be asked for.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .recipe import Recipe
from .stages import AnyTarget, load_target, read_streams
from .training import mixed_precision

TEMPERATURES = (0.0, 0.0, 0.7, 1.0)
_BATCH = 128


@torch.inference_mode()
def continue_batch(
    target: AnyTarget,
    prefix: Tensor,
    length: int,
    temperature: Tensor,
    generator: torch.Generator,
    *,
    float32: bool = False,
) -> Tensor:
    """Extend ``prefix [batch, n]`` to ``[batch, length]``; a temperature of 0 is greedy.

    End tokens do not stop a row: what follows an end in the packed streams is learnt as well.
    """
    dtype = torch.float32 if float32 else torch.bfloat16
    cache = target.new_cache(prefix.shape[0], length, dtype)
    rows, step = [prefix], prefix
    greedy = temperature == 0
    divisor = torch.where(greedy, 1.0, temperature)[:, None]
    for _ in range(length - prefix.shape[1]):
        with mixed_precision(enabled=not float32):
            states = target.hidden_states(step, cache)
            logits = target.logits([states[-1][:, -1:]])[:, 0].float()
        drawn = torch.multinomial((logits / divisor).softmax(-1), 1, generator=generator)
        step = torch.where(greedy[:, None], logits.argmax(-1, keepdim=True), drawn)
        rows.append(step)
    return torch.cat(rows, dim=1)


def self_generate(recipe: Recipe, work: Path) -> None:
    """Write ``self.npy`` (uint16 ``[rows, sequence]``) and ``self_prefix.npy`` (int64 ``[rows]``).

    Batches are saved one by one under ``work/self`` and reused by a resumed run.
    """
    target, streams = load_target(recipe, work), read_streams(work)
    folder = work / "self"
    folder.mkdir(exist_ok=True)
    batches, prefixes = [], []
    for number in range((recipe.self_generated + _BATCH - 1) // _BATCH):
        rng = np.random.default_rng([recipe.seed, 7, number])
        length = int(rng.integers(recipe.sequence // 16, 3 * recipe.sequence // 8))
        prefix = np.stack([_window(streams, recipe, rng, length) for _ in range(_BATCH)])
        path = folder / f"{number}.npy"
        if not path.exists():
            generator = torch.Generator().manual_seed(recipe.seed + number)
            temperature = torch.tensor(TEMPERATURES).repeat(_BATCH // len(TEMPERATURES))
            tokens = torch.from_numpy(prefix.astype(np.int64))
            rows = continue_batch(
                target,
                tokens,
                recipe.sequence,
                temperature,
                generator,
                float32=recipe.target_run.float32,
            )
            with open(path.with_suffix(".partial"), "wb") as file:
                np.save(file, rows.numpy().astype(np.uint16))
            os.replace(path.with_suffix(".partial"), path)
            print(f"self-generated batch {number}", flush=True)
        batches.append(np.load(path))
        prefixes.append(np.full(_BATCH, length))
    np.save(work / "self.npy", np.concatenate(batches))
    np.save(work / "self_prefix.npy", np.concatenate(prefixes))


def _window(
    streams: tuple[np.ndarray, np.ndarray], recipe: Recipe, rng: np.random.Generator, length: int
) -> np.ndarray:
    stream = streams[int(rng.random() < recipe.stdlib_share)]
    start = int(rng.integers(0, len(stream) - length))
    return stream[start : start + length]
