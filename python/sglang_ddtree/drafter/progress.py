"""Progress of a long step: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
from typing import Any


def progress(total: int, done: int, what: str, unit: str) -> Any:
    """A tqdm bar that starts at ``done``."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    interval = 0.5 if sys.stderr.isatty() else 60.0
    return tqdm(total=total, initial=done, desc=what, unit=unit, mininterval=interval, miniters=1)
