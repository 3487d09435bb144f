"""Prompts that a model can't read: no token at all, or tokens that it does not have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def problem(input_ids: Any, vocab_size: int) -> str | None:
    """Why the token ids of a prompt, or of a batch of prompts, can't be served; else ``None``."""
    if not isinstance(input_ids, Sequence) or not input_ids:
        return None  # SGLang's own checks see to it
    if isinstance(input_ids[0], int):
        return outside(input_ids, vocab_size)
    for index, ids in enumerate(input_ids):
        if isinstance(ids, Sequence) and not ids:
            return f"prompt {index} of the batch is empty: send at least one token"
        if isinstance(ids, Sequence) and (found := outside(ids, vocab_size)):
            return f"prompt {index} of the batch: {found}"
    return None


def outside(ids: Iterable[Any], vocab_size: int) -> str | None:
    """Names the first id that is no token of the vocabulary."""
    for token in ids:
        if not isinstance(token, int) or not 0 <= token < vocab_size:
            return f"{token!r} is not a token id: they go from 0 to {vocab_size - 1}"
    return None


EMPTY = "the prompt is empty: send at least one token"
