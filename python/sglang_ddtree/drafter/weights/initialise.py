"""``drafter init``: a drafter's config for a target, and weights to start training from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sglang_ddtree.drafter.errors import DrafterError
from sglang_ddtree.drafter.model import config as drafter_config
from sglang_ddtree.drafter.model.config import DrafterConfig
from sglang_ddtree.drafter.model.layers import Shape
from sglang_ddtree.drafter.model.model import Drafter
from sglang_ddtree.drafter.model.target import TargetFacts, read_tensors
from sglang_ddtree.engine.startup.target_capture import no_capture

# Head size and KV heads of the published drafters for latent-attention targets.
LATENT_HEAD_DIM = 128
LATENT_KV_HEADS = 8


@dataclass(frozen=True)
class Wishes:
    """What a user asks of a new drafter; None: what suits the target.

    Attributes:
        layers: of the drafter.
        block: tokens of one draft forward, the anchor included.
        context_layers: how many target layers it reads, evenly spaced; default ``layers``.
        target_layer_ids: these target layers instead.
        sliding_window: window of every layer but the last; None for full attention.
    """

    layers: int = 5
    block: int = 16
    context_layers: int | None = None
    target_layer_ids: tuple[int, ...] | None = None
    sliding_window: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    intermediate: int | None = None


def layer_ids(target: TargetFacts, wishes: Wishes) -> list[int]:
    """Target layers the drafter reads: named, or evenly spaced as SGLang's default spaces them.

    Raises:
        DrafterError: a layer does not exist, repeats, or can't be captured.
    """
    named = wishes.target_layer_ids
    ids = list(named) if named else _evenly_spaced(target.layers, wishes)
    if sorted(set(ids)) != ids:
        raise DrafterError(
            f"the drafter would read target layers {ids}: name different ones, in rising order, "
            "with --target-layers"
        )
    # A layer's output is captured as the next one's input, and nothing follows the last.
    beyond = [i for i in ids if not 0 <= i < target.layers - 1]
    if beyond:
        raise DrafterError(
            f"the drafter can't read target layers {beyond}: SGLang captures the outputs of layers "
            f"0..{target.layers - 2} of this target (--target-layers)"
        )
    return ids


def _evenly_spaced(target_layers: int, wishes: Wishes) -> list[int]:
    from sglang_ddtree.drafter.upstream.models import build_target_layer_ids

    try:
        return build_target_layer_ids(target_layers, wishes.context_layers or wishes.layers)
    except ValueError as error:
        raise DrafterError(f"{error} Name the layers with --target-layers") from error


def shape_for(target: TargetFacts, wishes: Wishes) -> Shape:
    """The drafter's sizes: the target's own wherever nothing else is wished.

    Raises:
        DrafterError: sizes that make no model.
    """
    heads = wishes.heads or target.heads
    usual_kv = min(LATENT_KV_HEADS, heads) if target.latent else target.kv_heads
    kv_heads = wishes.kv_heads or usual_kv
    intermediate = wishes.intermediate or target.intermediate
    if not intermediate:
        raise DrafterError("the target's config names no intermediate size: give --intermediate")
    head_dim = wishes.head_dim or (LATENT_HEAD_DIM if target.latent else target.head_dim)
    if heads % kv_heads:
        raise DrafterError(f"{heads} heads don't share {kv_heads} KV heads (--heads, --kv-heads)")
    if head_dim % 2:
        raise DrafterError(f"--head-dim {head_dim} is odd: rotary embedding needs pairs")
    if not target.rope_bases:
        raise DrafterError("the target's config names no rope_theta: SGLang's drafter needs one")
    return Shape(
        hidden=target.hidden,
        intermediate=intermediate,
        layers=wishes.layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=target.vocab,
        rope_theta=target.rope_bases[0],
        norm_eps=target.norm_eps,
        max_positions=target.max_positions,
    )


def build_config(
    target: TargetFacts, wishes: Wishes, mask_token_id: int, mask_token: str | None
) -> dict[str, Any]:
    """``config.json`` of a new drafter.

    Raises:
        DrafterError: SGLang could not capture from the target, or not load the drafter.
    """
    if not target.captures:
        raise DrafterError(no_capture(target.architecture))
    if wishes.layers < 1 or wishes.block < 2:
        raise DrafterError("--layers must be at least 1 and --block at least 2")
    if wishes.sliding_window is not None and wishes.sliding_window <= wishes.block:
        raise DrafterError(f"--sliding-window must exceed the block of {wishes.block} tokens")
    windows = [wishes.sliding_window] * (wishes.layers - 1) + [None]
    return drafter_config.to_json(
        shape_for(target, wishes),
        block=wishes.block,
        target_layers=target.layers,
        target_layer_ids=layer_ids(target, wishes),
        mask_token_id=mask_token_id,
        mask_token=mask_token,
        windows=windows,
        rope_scaling=target.rope_scaling,
    )


def first_weights(config: DrafterConfig, seed: int) -> dict[str, Tensor]:
    """Random weights, a function of the seed."""
    torch.manual_seed(seed)
    return dict(Drafter(config).state_dict())


def copy_target_layers(
    weights: dict[str, Tensor], target: str, layers: Sequence[int]
) -> dict[str, Tensor]:
    """``weights`` with the drafter's layers taken from the target's ``layers``, one for each.

    Tensors that the target lacks (Llama has no query and key norms) keep their first values.

    Raises:
        DrafterError: the target's layers are of another shape.
    """
    result, copied = dict(weights), 0
    for index, layer in enumerate(layers):
        mine = [name for name in weights if name.startswith(f"layers.{index}.")]
        theirs = {name: f"layers.{layer}." + name.split(".", 2)[2] for name in mine}
        found = read_tensors(Path(target), tuple(theirs.values()))
        for name, source in theirs.items():
            if source not in found:
                continue
            if found[source].shape != weights[name].shape:
                raise DrafterError(
                    f"--from-target: the target's {source} is {list(found[source].shape)}, the "
                    f"drafter's {name} {list(weights[name].shape)}: leave the sizes as the target's"
                )
            result[name] = found[source].to(weights[name].dtype).clone()
            copied += 1
    if not copied:
        raise DrafterError("--from-target: the target's layers have no tensors of a Qwen3 layer")
    return result
