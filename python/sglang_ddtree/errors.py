"""Errors that other people's code raises, told in one line."""

from __future__ import annotations

import traceback


def said_by(error: Exception) -> str:
    """An error in one line, with the code that failed where its words alone say nothing."""
    words = " ".join(str(error).split())
    if isinstance(error, (OSError, ValueError)):
        return words
    trace = traceback.extract_tb(error.__traceback__)
    where = f" at '{trace[-1].line}'" if isinstance(error, (TypeError, LookupError)) else ""
    return f"{type(error).__name__}: {words}{where}"
