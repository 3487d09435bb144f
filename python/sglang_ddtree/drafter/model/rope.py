"""Tables of the drafter's rotary embedding, as SGLang serves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sglang_ddtree.drafter.model.layers import Shape, rope_table

# Keys of a target's rope that describe its own heads; SGLang's drafter rotates whole heads.
_TARGET_ONLY = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")


def target_rope(rope: Mapping[str, Any] | None) -> tuple[tuple[float, ...], dict[str, Any] | None]:
    """Bases a target rotates with, the drafter's first, and its scaling; None without one.

    ``rope`` is ``rope_parameters`` of a transformers config, by layer type where types differ
    (Gemma-4: the full-attention layers' are the drafter's).
    """
    given = dict(rope or {})
    if isinstance(given.get("full_attention"), Mapping):
        kinds = [given["full_attention"], given.get("sliding_attention") or {}]
    else:
        kinds = [given]
    bases = tuple(float(kind["rope_theta"]) for kind in kinds if kind.get("rope_theta"))
    scaling = {k: v for k, v in kinds[0].items() if k not in _TARGET_ONLY}
    plain = scaling.get("rope_type", scaling.get("type", "default")) == "default"
    return bases, None if plain else scaling


def drafter_rope(
    config: Mapping[str, Any],
) -> tuple[tuple[float, ...], dict[str, Any] | None]:
    """As :func:`target_rope`, of a drafter's ``config.json``, which may name the base apart."""
    rope = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    if base := config.get("rope_theta"):
        rope["rope_theta"] = base
    return target_rope(rope)


def tables(
    shape: Shape, scaling: Mapping[str, Any] | None, positions: int
) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``[positions, head_dim]``, float32.

    Scaled kinds (yarn, llama3, ...) come from SGLang's own ``get_rope``, because the libraries
    differ in them: yarn's attention factor is another in transformers.
    """
    if scaling is None:
        return rope_table(shape, positions)
    from sglang_ddtree.drafter.upstream.models import get_rope

    rotary = get_rope(
        shape.head_dim,
        rotary_dim=shape.head_dim,
        max_position=shape.max_positions,
        base=shape.rope_theta,
        rope_scaling=dict(scaling),
        is_neox_style=True,
    )
    cos, sin = rotary.cos_sin_cache[:positions].float().chunk(2, dim=-1)
    return torch.cat([cos, cos], dim=-1), torch.cat([sin, sin], dim=-1)
