"""Where the demo pairs of a checkout lie: small targets with their drafters, in no wheel."""

from __future__ import annotations

from pathlib import Path

NAMES = ("smollm2", "tiny-dense", "tiny-hybrid", "tiny-mla", "tiny-swa")
FOLDER = Path(__file__).resolve().parents[2] / "pairs"


class PairNotFoundError(ValueError):
    """A demo pair was named where there is no checkout, or no pair of that name."""


def folder_of(name: str) -> Path:
    """The folder of a demo pair, which holds ``drafter`` and, of the tiny ones, ``target``.

    Raises:
        PairNotFoundError: this installation has no such pair; the message says where there is one.
    """
    if name not in NAMES:
        raise PairNotFoundError(f"no pair {name!r}; there are {', '.join(NAMES)}")
    if not FOLDER.is_dir():
        raise PairNotFoundError(
            f"the demo pair {name!r} lies in the repository of sglang-ddtree and in no wheel: run "
            "this from a checkout, or name folders of your own"
        )
    return FOLDER / name
