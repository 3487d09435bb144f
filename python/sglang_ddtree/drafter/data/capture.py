"""``drafter capture``: the target's hidden states of every answer, as files to train from."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sglang_ddtree.drafter.data.generate import read_answers
from sglang_ddtree.drafter.data.samples import Sample, file_of, mask_of, tokens_of, write_sample
from sglang_ddtree.drafter.errors import DrafterError
from sglang_ddtree.drafter.progress import progress
from sglang_ddtree.drafter.run_folder import RunFolder
from sglang_ddtree.drafter.upstream.capture_engine import CaptureEngine

Answers = Sequence[Mapping[str, Any]]


def usable(answers: Answers, max_length: int) -> list[Mapping[str, Any]]:
    """Answers of which, within ``max_length`` tokens, at least two were written by the target."""
    return [
        answer
        for answer in answers
        if min(len(answer["prompt_ids"]) + len(answer["output_ids"]), max_length)
        >= len(answer["prompt_ids"]) + 2
    ]


def answers_of(folder: RunFolder, limit: int | None, max_length: int) -> Answers:
    """The usable ones among a run's first ``limit`` answers.

    Raises:
        DrafterError: there are none.
    """
    answers = usable(read_answers(folder.answers)[:limit], max_length)
    if not answers:
        raise DrafterError(f"{folder.path} holds no answers: run 'drafter generate' first")
    return answers


def size_bytes(
    answers: Answers, max_length: int, width: int, element_bytes: int, top: int = 0
) -> int:
    """Bytes of all samples: hidden states, 8 bytes of id, 1 of mask and ``top`` x 6 a token."""
    tokens = sum(len(tokens_of(answer, max_length)[0]) for answer in answers)
    return tokens * (width * element_bytes + 9 + top * 6)


def check_room(folder: Path, needed: int) -> str:
    """A sentence on what the samples take.

    Raises:
        DrafterError: the disk has less.
    """
    free = shutil.disk_usage(folder).free
    told = f"{needed / 1e9:.2f} GB of hidden states to write, {free / 1e9:.1f} GB free in {folder}"
    if needed > free:
        raise DrafterError(
            f"{told}: capture fewer answers (--limit), train and delete them, then the next; or "
            "train online (drafter train --online)"
        )
    return told


def capture(
    answers: Answers,
    engine: CaptureEngine,
    folder: Path,
    *,
    max_length: int,
    dtype: torch.dtype | None,
    batch: int,
) -> int:
    """Write the samples that ``folder`` does not hold yet; returns how many.

    Args:
        dtype: of the stored hidden states; None for the target's.
        batch: answers given to the engine at a time.
    """
    missing = [answer for answer in answers if not file_of(folder, answer).exists()]
    with progress(len(answers), len(answers) - len(missing), "hidden states", "answer") as bar:
        for group in _groups(missing, batch):
            for answer, sample in zip(group, capture_group(group, engine, max_length), strict=True):
                if dtype is not None:
                    sample = replace(sample, hidden_states=sample.hidden_states.to(dtype))
                write_sample(file_of(folder, answer), sample)
                bar.update()
    return len(missing)


def capture_group(group: Answers, engine: CaptureEngine, max_length: int) -> Iterator[Sample]:
    """Samples of some answers, in memory."""
    texts = [tokens_of(answer, max_length) for answer in group]
    captured = engine.capture([ids for ids, _ in texts], [start for _, start in texts])
    for (ids, start), (rows, likeliest) in zip(texts, captured, strict=True):
        yield Sample(torch.tensor(ids), mask_of(len(ids), start), rows, likeliest)


def _groups(answers: Answers, size: int) -> Iterator[Answers]:
    for start in range(0, len(answers), size):
        yield answers[start : start + size]
