"""CPU lists in the kernel's notation, such as ``0-55,112-167``."""

from __future__ import annotations

import re

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def parse_cores(text: str) -> tuple[int, ...]:
    """Core numbers of a list, ascending. Raises ValueError that names the part it cannot read."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part!r} is no number or range in {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"{part!r} runs backwards in {text!r}")
        cores.update(range(first, last + 1))
    return tuple(sorted(cores))


def format_cores(cores: tuple[int, ...]) -> str:
    """The inverse of `parse_cores`, with every run as a range."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
