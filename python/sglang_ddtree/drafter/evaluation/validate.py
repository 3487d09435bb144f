"""``drafter validate``: would SGLang serve this drafter with this target, and as trained?"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sglang_ddtree.dflash.checkpoint import stored_tensors
from sglang_ddtree.drafter.errors import DrafterError
from sglang_ddtree.drafter.model.config import ARCHITECTURE
from sglang_ddtree.drafter.model.rope import drafter_rope
from sglang_ddtree.drafter.model.target import TargetFacts, facts_of, model_config
from sglang_ddtree.drafter.weights import convert


@dataclass
class Verdict:
    """Problems keep the drafter from being served as trained; notes are for a human to judge."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def validate(
    drafter: Path,
    target: str,
    *,
    tp_size: int = 1,
    config_only: bool = False,
    trust_remote_code: bool = False,
) -> Verdict:
    """Check a drafter's folder against a target.

    The checks of a server's start-up are called as they are (``engine.startup.model_checks``);
    those here are of what a server would not notice.

    Args:
        config_only: there are no weights to look at.

    Raises:
        DrafterError: one of the two can't be read at all.
    """
    config = read_config(drafter)
    model = model_config(target, trust_remote_code)
    facts = facts_of(model)
    if convert.is_speculators(config):
        convert.from_speculators(config, facts.layers)  # raises where it can't be converted
        return Verdict(
            ["this is a speculators checkpoint: convert it with 'sglang-ddtree drafter export'"]
        )
    verdict = Verdict(_startup_problems(drafter, model, tp_size, trust_remote_code))
    if config.get("architectures") != [ARCHITECTURE]:
        verdict.problems.append(
            f"config.json names architectures {config.get('architectures')}: a plain DFlash "
            f"drafter is [{ARCHITECTURE!r}]"
        )
    if not config_only and not stored_tensors(drafter):
        verdict.problems.append(f"{drafter} holds no safetensors file")
    verdict.problems += _layer_problems(config, facts)
    verdict.problems += _rope_problems(config)
    verdict.notes += _rope_notes(config, facts)
    return verdict


def read_config(drafter: Path) -> dict[str, Any]:
    """A drafter's ``config.json``.

    Raises:
        DrafterError: it is missing or no JSON.
    """
    file = drafter / "config.json"
    try:
        return json.loads(file.read_text())
    except OSError as error:
        raise DrafterError(f"there is no {file}: give the folder of a drafter") from error
    except json.JSONDecodeError as error:
        raise DrafterError(f"{file} is not JSON: {error}") from error


def _startup_problems(
    drafter: Path, target: Any, tp_size: int, trust_remote_code: bool
) -> list[str]:
    from sglang_ddtree.engine.config_error import DDTreeConfigError
    from sglang_ddtree.engine.startup.drafter_facts import load_drafter
    from sglang_ddtree.engine.startup.model_checks import model_problems

    server = SimpleNamespace(
        speculative_draft_model_path=str(drafter.absolute()),
        speculative_draft_model_revision=None,
        speculative_dflash_block_size=None,
        trust_remote_code=trust_remote_code,
        json_model_override_args="{}",
        tp_size=tp_size,
    )
    try:
        found = load_drafter(server)
    except DDTreeConfigError as error:
        return [str(error)]
    return model_problems(target, found, server)


def _layer_problems(config: dict[str, Any], target: TargetFacts) -> list[str]:
    problems = []
    nested = config.get("dflash_config") or {}
    ids = nested.get("target_layer_ids") or config.get("target_layer_ids") or []
    if target.layers - 1 in ids:
        problems.append(
            f"the drafter reads the target's last layer, {target.layers - 1}, which SGLang does "
            "not capture"
        )
    if nested.get("mask_token_id", config.get("mask_token_id")) is None:
        problems.append(
            "dflash_config.mask_token_id is missing: name the token it was trained with"
        )
    types, count = config.get("layer_types"), config.get("num_hidden_layers")
    if types is not None and len(types) != count:
        problems.append(f"layer_types has {len(types)} entries for {count} layers")
    if types and "sliding_attention" in types and not config.get("sliding_window"):
        problems.append("sliding_attention layers need sliding_window in config.json")
    return problems


def _rope_problems(config: dict[str, Any]) -> list[str]:
    """What SGLang's own rope says to the drafter's scaling."""
    bases, scaling = drafter_rope(config)
    if not bases:
        return ["config.json names no rope_theta: SGLang would take its default"]
    if scaling is None:
        return []
    from sglang_ddtree.drafter.upstream.models import get_rope

    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    try:
        get_rope(
            head_dim, rotary_dim=head_dim, max_position=64, base=bases[0], rope_scaling=scaling
        )
    except (ValueError, KeyError, TypeError) as error:
        return [f"SGLang can't build the drafter's rope {scaling}: {error!r}"]
    return []


def _rope_notes(config: dict[str, Any], target: TargetFacts) -> list[str]:
    bases, scaling = drafter_rope(config)
    notes = []
    if bases and bases[0] not in target.rope_bases:
        theirs = ", ".join(f"{base:g}" for base in target.rope_bases)
        notes.append(
            f"the drafter rotates with rope_theta {bases[0]:g}, the target with {theirs}: right "
            "only if it was trained so"
        )
    if scaling != target.rope_scaling:
        notes.append(
            f"the drafter's rope scaling is {scaling}, the target's {target.rope_scaling}: right "
            "only if it was trained so"
        )
    return notes
