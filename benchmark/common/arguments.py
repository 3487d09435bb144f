"""Command-line arguments that the benchmarks share."""

from __future__ import annotations

import argparse

from common.pairs import Pair, names


def parser(description: str) -> argparse.ArgumentParser:
    """A parser that knows ``--pair``."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument("--pair", type=pair, default="tiny-dense", help=", ".join(names()))
    return made


def pair(name: str) -> Pair:
    """The pair of that name."""
    if name not in names():
        raise argparse.ArgumentTypeError(f"no pair {name!r}; there are {', '.join(names())}")
    return Pair(name)


def integers(text: str) -> list[int]:
    """Positive integers separated by commas."""
    values = [int(part) for part in text.split(",")]
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"must be positive: {text}")
    return values


def numbers(text: str) -> list[float]:
    """Numbers separated by commas."""
    return [float(part) for part in text.split(",")]
