"""Training of the drafter on the frozen target's hidden states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .drafter import Drafter
from .hub import warm_drafter
from .recipe import Recipe
from .stages import AnyTarget, load_target, read_streams
from .tokens import MASK_ID
from .training import mixed_precision, train


def features(target: AnyTarget, recipe: Recipe, tokens: Tensor) -> Tensor:
    """Hidden states after the recipe's target layers, concatenated: ``[batch, n, K * hidden]``."""
    states = target.hidden_states(tokens)
    return torch.cat([states[layer] for layer in recipe.target_layer_ids], dim=-1)


def block_inputs(anchor_tokens: Tensor, block: int) -> Tensor:
    """``[..., A]`` anchor tokens to block input ids ``[..., A, block]``: anchor, then masks."""
    ids = torch.full((*anchor_tokens.shape, block), MASK_ID)
    ids[..., 0] = anchor_tokens
    return ids


def draft_batch(recipe: Recipe, work: Path) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Function of the step to tokens ``[sequences, sequence]`` and anchors ``[sequences, A]``."""
    streams = read_streams(work)
    own = np.load(work / "self.npy", mmap_mode="r")
    prefix = np.load(work / "self_prefix.npy")
    last = recipe.sequence - recipe.block

    def batch(step: int) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng([recipe.drafter_run.seed, step])
        rows, anchors = [], []
        for _ in range(recipe.drafter_run.batch(step)):
            if rng.random() < recipe.self_generated_share:
                index = int(rng.integers(0, len(own)))
                rows.append(own[index])
                first = int(prefix[index]) - 1
            else:
                stream = streams[int(rng.random() < recipe.stdlib_share)]
                start = int(rng.integers(0, len(stream) - recipe.sequence))
                rows.append(stream[start : start + recipe.sequence])
                first = 8
            anchors.append(rng.integers(first, last + 1, size=recipe.anchors))
        tokens = np.stack(rows).astype(np.int64)
        return torch.from_numpy(tokens), torch.from_numpy(np.stack(anchors))

    return batch


def train_drafter(
    recipe: Recipe,
    work: Path,
    *,
    compiled: bool = False,
    stop_after: int | None = None,
    on_save: Callable[[int], None] | None = None,
) -> Drafter:
    """Cross-entropy of slots 1..B-1, slot k weighted by ``exp(-(k-1)/gamma)``."""
    torch.manual_seed(recipe.drafter_run.seed)
    target, model = load_target(recipe, work), Drafter(recipe)
    if recipe.teacher:
        model.load_state_dict(warm_drafter(recipe))
    batch = draft_batch(recipe, work)
    slots = torch.arange(1, recipe.block)
    weights = torch.exp(-(slots - 1) / recipe.gamma)
    weights = weights / weights.sum()

    def losses(
        context: Tensor, embeds: Tensor, anchors: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        hidden = model(model.project(context), embeds, anchors)[:, :, 1:]
        logits = target.head(hidden).float()
        loss = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none")
        hits = (logits.argmax(-1) == labels).float().mean(dim=(0, 1))
        return (loss.view_as(labels).mean(dim=(0, 1)) * weights).sum(), hits

    loss_function = torch.compile(losses) if compiled else losses

    def loss_of_step(step: int) -> tuple[Tensor, dict[str, Any]]:
        tokens, anchors = batch(step)
        labels = tokens.gather(1, (anchors[..., None] + slots).flatten(1))
        labels = labels.view(*anchors.shape, -1)
        with mixed_precision(enabled=not recipe.drafter_run.float32):
            with torch.no_grad():
                context = features(target, recipe, tokens)
                ids = block_inputs(tokens.gather(1, anchors), recipe.block)
                embeds = target.embed(ids)
            loss, hits = loss_function(context, embeds, anchors, labels)
        return loss, {"hits": [round(hit, 3) for hit in hits.tolist()]}

    train(
        model,
        loss_of_step,
        recipe.drafter_run,
        work,
        name="drafter",
        stop_after=stop_after,
        on_save=on_save,
    )
    return model


def load_drafter(recipe: Recipe, work: Path) -> Drafter:
    """The trained drafter with bfloat16-rounded weights, in float32."""
    model = Drafter(recipe)
    state = torch.load(work / "drafter.pt", weights_only=True)["model"]
    model.load_state_dict({name: w.bfloat16().float() for name, w in state.items()})
    return model.eval().requires_grad_(False)
