"""Checkpoints of random weights, whose greedy tokens depend on every setting of their config."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from sglang_ddtree.drafter.model import config as drafter_config
from sglang_ddtree.drafter.model.layers import Shape
from sglang_ddtree.drafter.weights import initialise

BLOCK = 8


def _random(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Far from what a missing weight or a skipped factor would look like.

    A norm's weights lie around what they were, 1 or 0; biases are as large as what they add to.
    """
    noise = torch.randn(tensor.shape, generator=generator)
    if tensor.dim() >= 2:
        embeds = "embed" in name
        return noise * (0.5 if embeds else 1.5 / math.sqrt(tensor.shape[-1]))
    return tensor.float().mean() + 0.3 * noise


@torch.no_grad()
def write_target(config: dict[str, Any], folder: Path) -> Path:
    """A float32 checkpoint of a ``config.json`` that transformers knows."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).float()
    generator = torch.Generator().manual_seed(3)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in model.state_dict():
            tensor.copy_(_random(name, tensor, generator))
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_drafter(text: dict[str, Any], captured: Sequence[int], folder: Path) -> Path:
    """A DFlash drafter for a target of this text config, of two layers."""
    shape = Shape(
        hidden=text["hidden_size"],
        intermediate=64,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocab=text["vocab_size"],
        rope_theta=10000.0,
        norm_eps=1e-6,
        max_positions=text["max_position_embeddings"],
    )
    config = drafter_config.to_json(
        shape,
        block=BLOCK,
        target_layers=text["num_hidden_layers"],
        target_layer_ids=captured,
        mask_token_id=text["vocab_size"] - 1,
    )
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = initialise.first_weights(drafter_config.from_json(config), seed=5)
    weights = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder
