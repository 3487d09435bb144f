"""Training samples: token ids, which of them to learn, and the target's hidden states.

Offline, a sample is one safetensors file with the tensors of SpecForge's offline schema:
``input_ids [n]`` int64, ``loss_mask [n]`` bool (true where the target itself wrote the token) and
``hidden_states [n, K * hidden]``. Where the target's likeliest tokens were captured too, it has
``top_tokens [n, T]`` int32 and ``top_probs [n, T]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sglang_ddtree.drafter.errors import DrafterError
from sglang_ddtree.drafter.files import write_tensors


@dataclass(frozen=True)
class Likeliest:
    """What the target would write at each position of a text, to distil from.

    Attributes:
        tokens: int32 ``[n, T]``, its T likeliest tokens; row i stands for the token at i, given
            those before it.
        probs: ``[n, T]``, their probabilities at temperature 1; zero where not captured.
    """

    tokens: Tensor
    probs: Tensor


@dataclass(frozen=True)
class Sample:
    """One text; ``hidden_states`` are of the layers that the drafter reads, side by side."""

    input_ids: Tensor
    loss_mask: Tensor
    hidden_states: Tensor
    likeliest: Likeliest | None = None

    def __len__(self) -> int:
        return len(self.input_ids)


def tokens_of(answer: Mapping[str, Any], max_length: int) -> tuple[list[int], int]:
    """An answer's prompt and output as one text of at most ``max_length``, and where it begins."""
    prompt, output = answer["prompt_ids"], answer["output_ids"]
    return [*prompt, *output][:max_length], len(prompt)


def mask_of(length: int, prompt_length: int) -> Tensor:
    """True for the tokens that the target wrote."""
    return torch.arange(length) >= prompt_length


def file_of(folder: Path, answer: Mapping[str, Any]) -> Path:
    """Where a sample is kept: by the line and temperature of its answer, a thousand a folder."""
    line = answer["line"]
    name = f"{line:07d}-{answer['temperature']:g}.safetensors"
    return folder / f"{line // 1000:04d}" / name


def write_sample(path: Path, sample: Sample) -> None:
    tensors = {
        "input_ids": sample.input_ids,
        "loss_mask": sample.loss_mask,
        "hidden_states": sample.hidden_states,
    }
    if sample.likeliest is not None:
        tensors["top_tokens"] = sample.likeliest.tokens
        tensors["top_probs"] = sample.likeliest.probs
    write_tensors(path, tensors)


def sample_files(folder: Path) -> list[Path]:
    """All samples of a folder, in the order of their answers.

    Raises:
        DrafterError: there are none.
    """
    files = sorted(folder.glob("*/*.safetensors"), key=_line_and_temperature)
    if not files:
        raise DrafterError(f"{folder} holds no samples: run 'drafter capture' first")
    return files


def _line_and_temperature(file: Path) -> tuple[int, float]:
    line, temperature = file.stem.split("-")
    return int(line), float(temperature)


def read_sample(path: Path) -> Sample:
    from safetensors.torch import load_file

    tensors = load_file(path)
    likeliest = None
    if "top_tokens" in tensors:
        likeliest = Likeliest(tensors["top_tokens"], tensors["top_probs"])
    mask = tensors["loss_mask"].bool()
    return Sample(tensors["input_ids"], mask, tensors["hidden_states"], likeliest)
