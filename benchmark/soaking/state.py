"""How far a soak is and what it found, in a file, so that it can be resumed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_FAULTS = 200


@dataclass
class State:
    """Everything that a soak remembers.

    Attributes:
        options: what makes the calls: seed, pair, kinds left out. A soak is resumed with the same.
        done: calls so far; the next one has this number.
        kinds: calls by kind.
        reasons: outputs by why they ended.
        counts: tokens, steps, retractions, compared, equal, excused, differing, refused and others.
        faults: what was wrong, the first :data:`MAX_FAULTS` of them.
        lives: of each server that was started: ``first`` and ``last`` census, and those between.
        accepted: tokens and steps of each thousand calls, as far as ``/generate`` told them.
        seconds: time so far.
    """

    options: dict[str, Any]
    done: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    lives: list[list[dict[str, Any]]] = field(default_factory=list)
    accepted: dict[str, list[int]] = field(default_factory=dict)
    seconds: float = 0.0

    def fault(self, words: str) -> None:
        """Note something that is wrong."""
        self.counts["faults"] += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(words)

    def accept(self, number: int, tokens: int, steps: int) -> None:
        """Note the tokens that a call's decode steps put out."""
        sums = self.accepted.setdefault(str(number // 1000), [0, 0])
        sums[0] += tokens
        sums[1] += steps

    def save(self, path: Path) -> None:
        """Write the file as a whole or not at all."""
        scratch = path.with_suffix(".new")
        scratch.write_text(json.dumps(vars(self), indent=1))
        scratch.replace(path)

    @staticmethod
    def load(path: Path, options: dict[str, Any]) -> State:
        """The state in ``path``, or a new one where there is none.

        Raises:
            ValueError: the file is of a soak with other options.
        """
        if not path.exists():
            return State(options)
        read = json.loads(path.read_text())
        if read["options"] != options:
            raise ValueError(f"{path} is of another soak: {read['options']}, not {options}")
        for name in ("kinds", "reasons", "counts"):
            read[name] = Counter(read[name])
        return State(**read)
