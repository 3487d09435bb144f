"""Targets that the project names, from the files in ``configs/``, and any target on disk.

Each file holds the part of a published ``config.json`` that a plan needs, the sizes that no config
has, and the source of every group of numbers. "Derived" is arithmetic on the config; groups in
`uncertain` are estimates.
"""

from __future__ import annotations

import json
from pathlib import Path

from sglang_ddtree.cluster.facts.config_facts import ConfigError, read_folder, read_record
from sglang_ddtree.cluster.facts.models import ModelFacts

_FILES = sorted((Path(__file__).parents[1] / "configs").glob("*.json"))
MODELS = {facts.name: facts for facts in (read_record(json.loads(f.read_text())) for f in _FILES)}
_ALIASES = {"kimi-k2.5": "kimi-k2.6", "gemma-4-31b-it": "gemma-4-31b"}

QWEN36_27B = MODELS["qwen3.6-27b"]
QWEN3_8B = MODELS["qwen3-8b"]
KIMI_K2 = MODELS["kimi-k2.6"]


def model_facts(name: str, drafter: str | None = None) -> ModelFacts:
    """Facts of a model by its name, its repository (in any case) or its folder.

    drafter: the drafter's folder, used for a model on disk.
    Raises KeyError that lists the known names, ConfigError for a folder that can't be used.
    """
    folder = Path(name)
    if folder.is_dir():
        return read_folder(folder, Path(drafter) if drafter else None)
    key = name.rsplit("/", 1)[-1].lower().removesuffix("-instruct")
    key = _ALIASES.get(key, key)
    if key not in MODELS:
        known = ", ".join(sorted({*MODELS, *_ALIASES}))
        raise KeyError(f"no facts about {name!r}: name a model folder, or one of {known}")
    return MODELS[key]


__all__ = ["KIMI_K2", "MODELS", "QWEN3_8B", "QWEN36_27B", "ConfigError", "model_facts"]
