"""Targets of other architectures: transformers' own class behind the interface of ``Target``.

They are trained to imitate a finished pair's target: its tokenizer and corpus are theirs, weights
of equal shape are copied from it, and the rest learns its distributions and residual stream.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from . import hybrid, mla, swa
from .model import Target
from .recipe import Recipe

ARCHITECTURES: dict[str, Any] = {"hybrid": hybrid, "mla": mla, "swa": swa}
PAIRS = Path(__file__).resolve().parents[2] / "pairs"


class HubTarget(nn.Module):
    """A causal language model of transformers.

    ``causal`` is the model itself; its parameter names are those of the checkpoint.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.architecture = ARCHITECTURES[recipe.architecture]
        values = dict(self.architecture.config(recipe.target))
        config = AutoConfig.for_model(values.pop("model_type"), **values)
        self.causal: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        self.causal.config.use_cache = False

    def new_cache(self, batch: int, capacity: int, dtype: torch.dtype) -> DynamicCache:
        return DynamicCache(config=self.causal.config)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.causal.get_input_embeddings()(tokens)

    def hidden_states(self, tokens: Tensor, cache: DynamicCache | None = None) -> list[Tensor]:
        """Residual stream after each layer but the last, then the final norm's output."""
        output = self.causal.model(
            tokens,
            past_key_values=cache,
            use_cache=cache is not None,
            output_hidden_states=True,
        )
        return [*output.hidden_states[1:-1], output.last_hidden_state]

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of normalised hidden states, ``[..., hidden] -> [..., vocab]``."""
        return self.causal.lm_head(hidden)

    def logits(self, states: list[Tensor]) -> Tensor:
        return self.head(states[-1])

    def checkpoint(self) -> dict[str, Tensor]:
        """Tensors to ship, by the names that transformers and SGLang load."""
        state = self.causal.state_dict()
        if self.causal.config.tie_word_embeddings:
            del state["lm_head.weight"]
        return self.architecture.checkpoint(state)


def shipped_weights(pair: str, part: str) -> dict[str, Tensor]:
    """Weights of a bundled pair's ``target`` or ``drafter``, in float32."""
    weights = load_file(PAIRS / pair / part / "model.safetensors")
    return {name: weight.float() for name, weight in weights.items()}


def warm_drafter(recipe: Recipe) -> dict[str, Tensor]:
    """The weights of the teacher's drafter, before the head of the recipe's target."""
    weights = shipped_weights(str(recipe.teacher), "drafter")
    weights["norm.weight"] *= ARCHITECTURES[recipe.architecture].head_shrink(recipe.target)
    return weights


def load_teacher(recipe: Recipe) -> Target:
    """The shipped target of the pair that ``recipe`` imitates, frozen, in float32."""
    teacher = Target(recipe.teacher_size)
    teacher.load_state_dict(shipped_weights(str(recipe.teacher), "target"))
    return teacher.eval().requires_grad_(False)


def warm_start(model: HubTarget, teacher: Target, sample: Tensor) -> None:
    """Weights from ``teacher``; ``sample [batch, n]`` is text to measure its activations on."""
    model.architecture.warm_start(model.causal, teacher, sample)
