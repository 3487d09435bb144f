"""Batches of training samples: a function of the seed and the step, on any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sglang_ddtree.drafter.data.samples import Likeliest, Sample, read_sample
from sglang_ddtree.drafter.errors import DrafterError


@dataclass(frozen=True)
class Batch:
    """Texts of one step, padded to one length.

    Attributes:
        tokens: int64 ``[texts, n]``.
        features: ``[texts, n, K * hidden]``, the target's hidden states.
        learn: bool ``[texts, n]``, tokens of the target's own.
        anchors: int64 ``[texts, A]``, positions that blocks start from.
        used: bool ``[texts, A]``; a short text has fewer anchors than A.
        likeliest: the target's likeliest tokens ``[texts, n, T]``, where they were captured.
    """

    tokens: Tensor
    features: Tensor
    learn: Tensor
    anchors: Tensor
    used: Tensor
    likeliest: Likeliest | None = None

    def pieces(self, blocks: int) -> Iterator[Batch]:
        """The batch itself, or its parts of at most ``blocks`` blocks, text by text.

        How many depends on the shape alone, so that every rank has as many.
        """
        if self.anchors.numel() <= blocks:
            yield self
            return
        for row in range(len(self.tokens)):
            text = slice(row, row + 1)
            top = self.likeliest
            likeliest = top and Likeliest(top.tokens[text], top.probs[text])
            for first in range(0, self.anchors.shape[1], blocks):
                part = slice(first, first + blocks)
                yield Batch(
                    self.tokens[text],
                    self.features[text],
                    self.learn[text],
                    self.anchors[text, part],
                    self.used[text, part],
                    likeliest,
                )

    def to(self, device: torch.device) -> Batch:
        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        top = self.likeliest
        return Batch(
            move(self.tokens),
            move(self.features),
            move(self.learn),
            move(self.anchors),
            move(self.used),
            top and Likeliest(move(top.tokens), move(top.probs)),
        )


def draw_anchors(learn: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Up to ``count`` different positions before a token that is the target's own."""
    positions = np.flatnonzero(learn[1:])
    if len(positions) <= count:
        return positions
    return rng.choice(positions, size=count, replace=False)


def collate(samples: Sequence[Sample], anchors: Sequence[np.ndarray], count: int) -> Batch:
    """Samples with their anchors as one batch; ``count`` is A."""
    length = max(len(sample) for sample in samples)
    texts, width = len(samples), samples[0].hidden_states.shape[-1]
    top = samples[0].likeliest
    likeliest = top and Likeliest(
        torch.zeros(texts, length, top.tokens.shape[1], dtype=top.tokens.dtype),
        torch.zeros(texts, length, top.probs.shape[1], dtype=top.probs.dtype),
    )
    batch = Batch(
        torch.zeros(texts, length, dtype=torch.int64),
        torch.zeros(texts, length, width, dtype=samples[0].hidden_states.dtype),
        torch.zeros(texts, length, dtype=torch.bool),
        torch.zeros(texts, count, dtype=torch.int64),
        torch.zeros(texts, count, dtype=torch.bool),
        likeliest,
    )
    for row, (sample, drawn) in enumerate(zip(samples, anchors, strict=True)):
        batch.tokens[row, : len(sample)] = sample.input_ids
        batch.features[row, : len(sample)] = sample.hidden_states
        batch.learn[row, : len(sample)] = sample.loss_mask
        batch.anchors[row, : len(drawn)] = torch.from_numpy(drawn)
        batch.used[row, : len(drawn)] = True
        if likeliest is not None and sample.likeliest is not None:
            likeliest.tokens[row, : len(sample)] = sample.likeliest.tokens
            likeliest.probs[row, : len(sample)] = sample.likeliest.probs
    return batch


# From indices of texts to samples: files that were captured, or an engine that captures now.
Reader = Callable[[Sequence[int]], list[Sample]]


@dataclass(frozen=True)
class Source:
    """This rank's part of each step's batch.

    Every epoch is another order of all texts. Which texts and anchors a step has follows from
    ``seed`` and the step alone, so a resumed run, or one on more processes, sees the same.

    Attributes:
        texts: how many there are.
        per_step: texts of a step, over all ranks.
        anchors: blocks of a text.
    """

    read: Reader
    texts: int
    per_step: int
    anchors: int
    seed: int
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.per_step % self.world:
            raise DrafterError(
                f"--batch {self.per_step} can't be shared by {self.world} processes: give a "
                "multiple"
            )

    def indices(self, step: int) -> list[tuple[int, int]]:
        """Epoch and text of each of this rank's texts."""
        first = step * self.per_step
        places = range(first + self.rank, first + self.per_step, self.world)
        return [
            (p // self.texts, int(self._order(p // self.texts)[p % self.texts])) for p in places
        ]

    def _order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, epoch]).permutation(self.texts)

    def __call__(self, step: int) -> Batch:
        chosen = self.indices(step)
        samples = self.read([text for _, text in chosen])
        drawn = [
            draw_anchors(
                sample.loss_mask.numpy(),
                self.anchors,
                np.random.default_rng([self.seed, epoch, text]),
            )
            for (epoch, text), sample in zip(chosen, samples, strict=True)
        ]
        return collate(samples, drawn, self.anchors)


def file_reader(files: Sequence[Path]) -> Reader:
    """Reads captured samples."""
    return lambda indices: [read_sample(files[index]) for index in indices]


def used_tokens(learnt_ids: Any, size: int | None) -> Tensor:
    """Tokens that the target wrote, ascending: all, or the ``size`` most frequent.

    Args:
        learnt_ids: arrays of token ids, one for each text.
    """
    counts: np.ndarray = np.zeros(1, dtype=np.int64)
    for ids in learnt_ids:
        found = np.bincount(ids)
        longer = max(len(found), len(counts))
        counts = np.pad(counts, (0, longer - len(counts))) + np.pad(found, (0, longer - len(found)))
    order = np.argsort(-counts, kind="stable")[: (counts > 0).sum()]
    return torch.from_numpy(np.sort(order[:size]).astype(np.int64))
