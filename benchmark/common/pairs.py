"""The demo pairs of this checkout."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_ddtree import pairs
from sglang_ddtree.drafter import smollm2


@dataclass(frozen=True)
class Pair:
    """A target, its drafter and held-out prompts, in ``pairs/<name>/``.

    Of ``smollm2`` the target is not shipped: it is fetched on first use.
    """

    name: str

    @property
    def target(self) -> Path:
        if self.name == "smollm2":
            return smollm2.ensure(smollm2.default_folder())
        return pairs.folder_of(self.name) / "target"

    @property
    def drafter(self) -> Path:
        return pairs.folder_of(self.name) / "drafter"

    @property
    def flags(self) -> list[str]:
        """What its servers are started with: a pool that leaves room for several, side by side."""
        return ["--max-total-tokens", "8192"] if self.name == "smollm2" else []

    @property
    def block_size(self) -> int:
        return json.loads((self.drafter / "config.json").read_text())["block_size"]

    @property
    def is_hybrid(self) -> bool:
        """Whether the target has recurrent layers beside attention."""
        config = json.loads((self.target / "config.json").read_text())
        return "linear_attention" in config.get("layer_types", ())

    def prompts(self, count: int | None = None) -> list[dict[str, Any]]:
        """Held-out prompts: ``id``, ``kind``, ``prompt`` (rendered), ``messages`` for chats.

        Args:
            count: take this many, spread evenly so that every kind is among them; default all.
        """
        lines = (pairs.folder_of(self.name) / "prompts.jsonl").read_text().splitlines()
        count = len(lines) if count is None else min(count, len(lines))
        return [json.loads(lines[i * len(lines) // count]) for i in range(count)]


def names() -> list[str]:
    """Every pair that ships."""
    return list(pairs.NAMES)
