"""Sampling parameters that SGLang can't hold.

Its scheduler ends at one of a wrong type, which it can't decode, or of a size that its tensors
don't have; clients of ``/generate`` and of Ollama's API send them as they like.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import msgspec

# Set by SGLang alone; and what it converts by itself.
INTERNAL = frozenset(
    {"stop_strs", "stop_regex_strs", "stop_str_max_len", "stop_regex_max_len", "is_normalized"}
)
UNTYPED = frozenset({"watermark"})
# Sorted by 32-bit tensors; each copy is a request of its own, made before any is queued.
BOUNDS: Mapping[str, tuple[int, int]] = {"top_k": (-1, 2**31 - 1), "n": (1, 1024)}


def problem(params: Mapping[str, Any]) -> str | None:
    """What to change in the sampling parameters of a prompt; ``None`` when they can be held."""
    for name, value in params.items():
        if name in INTERNAL or name not in types():
            return f"there is no sampling parameter {name!r}"
        if value is None or name in UNTYPED:
            continue
        try:
            msgspec.convert(value, types()[name])
        except msgspec.ValidationError as error:
            return f"{name}: {error}"
        if name in BOUNDS and not BOUNDS[name][0] <= value <= BOUNDS[name][1]:
            low, high = BOUNDS[name]
            return f"{name} must be from {low} to {high}, got {value}"
        if name == "stop_regex" and (found := pattern_problem(value)):
            return f"{name}: {found}"
    return None


def pattern_problem(patterns: str | list[str]) -> str | None:
    """Why one of ``patterns`` is no regular expression, or ``None``."""
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            return f"{pattern!r} is no regular expression: {error}"
    return None


@functools.cache
def types() -> Mapping[str, Any]:
    """The type of each field of SGLang's ``SamplingParams``."""
    from sglang.srt.sampling.sampling_params import SamplingParams

    return {field.name: field.type for field in msgspec.structs.fields(SamplingParams)}
