"""The folder of one drafter in the making: what each step wrote, and with what."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from sglang_ddtree.drafter.errors import DrafterError
from sglang_ddtree.drafter.files import write_json

_PACKAGES = ("sglang-ddtree", "sglang", "torch", "transformers", "safetensors")


@dataclass(frozen=True)
class RunFolder:
    """Where the steps of one run keep their files."""

    path: Path

    @property
    def drafter(self) -> Path:
        """The drafter as ``init`` made it: config and first weights."""
        return self.path / "init"

    @property
    def answers(self) -> Path:
        return self.path / "answers.jsonl"

    @property
    def shards(self) -> Path:
        return self.path / "shards"

    @property
    def training(self) -> Path:
        return self.path / "train"

    @property
    def exported(self) -> Path:
        """The trained drafter, as SGLang loads it."""
        return self.path / "drafter"

    def record(
        self, step: str, options: Mapping[str, Any], fixed: Mapping[str, Any] | None = None
    ) -> None:
        """Write down a step's options, versions and time in ``run.json``."""
        steps = self.recorded()
        steps[step] = {
            "options": {key: _plain(value) for key, value in options.items()},
            "versions": {name: _version(name) for name in _PACKAGES},
            **({"fixed": dict(fixed)} if fixed is not None else {}),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        write_json(self.path / "run.json", steps)

    def keep_same(self, step: str, fixed: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Record a step that may be resumed; ``fixed`` must be what it was begun with.

        Raises:
            DrafterError: it was begun with something else.
        """
        before = self.recorded().get(step, {}).get("fixed")
        changed = [key for key in fixed if before is not None and before.get(key) != fixed[key]]
        if before is not None and changed:
            told = ", ".join(f"{key} {before.get(key)!r} (now {fixed[key]!r})" for key in changed)
            raise DrafterError(
                f"{self.path} was begun with {told}: give the same again to go on, or a new --work "
                "folder"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        self.record(step, options, fixed)

    def recorded(self) -> dict[str, Any]:
        """What the steps wrote down so far."""
        file = self.path / "run.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def target(self, given: str | None) -> str:
        """The target: as given, or that of ``init``.

        Raises:
            DrafterError: neither is known.
        """
        if given:
            return given
        try:
            return str(self.recorded()["init"]["options"]["target"])
        except KeyError:
            raise DrafterError(
                f"{self.path} names no target: run 'drafter init' first, or give --target"
            ) from None

    def drafter_config(self) -> dict[str, Any]:
        """``config.json`` as ``init`` wrote it.

        Raises:
            DrafterError: there is none.
        """
        file = self.drafter / "config.json"
        if not file.exists():
            raise DrafterError(f"{self.path} holds no drafter: run 'drafter init' first")
        return json.loads(file.read_text())


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
