"""Arguments that several steps share."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--work", type=Path, required=True, dest="folder", help="the run's folder")


def add_target(parser: argparse.ArgumentParser, required: bool = False) -> None:
    parser.add_argument(
        "--target",
        required=required,
        help="folder or hub name of the target" + ("" if required else "; default: that of init"),
    )
    parser.add_argument("--trust-remote-code", action="store_true")


def integers(text: str) -> tuple[int, ...]:
    """Integers separated by commas."""
    return tuple(int(part) for part in text.split(","))


def numbers(text: str) -> tuple[float, ...]:
    """Numbers separated by commas."""
    return tuple(float(part) for part in text.split(","))


def options_of(args: argparse.Namespace) -> dict[str, object]:
    """What ``run.json`` keeps of the command line."""
    skipped = ("run", "command", "step", "folder")
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in vars(args).items()
        if key not in skipped
    }
