"""Sizes, seeds and schedules of each pair; a pair is a function of its recipe."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sglang_ddtree.drafter.model.layers import Shape
from sglang_ddtree.drafter.training import optimizers


@dataclass(frozen=True)
class ModelSize(Shape):
    """Shape of a Qwen3 block stack; ``layers`` differs between target and drafter."""

    hidden: int = 192
    intermediate: int = 448
    layers: int = 4
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64
    vocab: int = 2048
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    max_positions: int = 4096


@dataclass(frozen=True, kw_only=True)
class Schedule(optimizers.Schedule):
    """One training run.

    A step takes ``sequences`` sequences, and twice as many before step ``double_until``.
    """

    sequences: int
    seed: int
    double_until: int = 0

    def batch(self, step: int) -> int:
        return self.sequences * (2 if step < self.double_until else 1)


@dataclass(frozen=True)
class Recipe:
    """A pair. With a ``teacher``, a finished pair, both models start from its weights."""

    name: str
    target: ModelSize
    drafter: ModelSize
    target_run: Schedule
    drafter_run: Schedule
    seed: int = 20_260
    sequence: int = 512
    block: int = 16
    target_layer_ids: tuple[int, ...] = (0, 1, 2)
    anchors: int = 48
    gamma: float = 7.0
    generated_documents: int = 24_000
    stdlib_share: float = 0.2
    self_generated: int = 1536
    self_generated_share: float = 0.75
    architecture: str = "dense"
    teacher: str | None = None
    teacher_size: ModelSize = ModelSize()


TINY_DENSE = Recipe(
    name="tiny-dense",
    target=ModelSize(),
    drafter=replace(ModelSize(), layers=3),
    target_run=Schedule(steps=1400, sequences=8, seed=1, double_until=200),
    drafter_run=Schedule(steps=2400, sequences=4, seed=2),
)
TINY_HYBRID = replace(
    TINY_DENSE,
    name="tiny-hybrid",
    architecture="hybrid",
    teacher="tiny-dense",
    target_run=Schedule(
        steps=1000, sequences=4, seed=3, matrix_lr=0.01, other_lr=1e-3, warmup=20, float32=True
    ),
    drafter_run=Schedule(
        steps=400, sequences=2, seed=4, matrix_lr=0.005, other_lr=5e-4, warmup=20, float32=True
    ),
    sequence=256,
    anchors=32,
    stdlib_share=0.1,
    self_generated=512,
)
TINY_MLA = replace(
    TINY_HYBRID,
    name="tiny-mla",
    architecture="mla",
    target_run=replace(TINY_HYBRID.target_run, steps=700),
    self_generated=256,
)
TINY_SWA = replace(
    TINY_HYBRID,
    name="tiny-swa",
    architecture="swa",
    target_run=replace(TINY_HYBRID.target_run, steps=400, embedding_lr=1e-4),
    drafter_run=replace(TINY_HYBRID.drafter_run, steps=800),
)
RECIPES = {recipe.name: recipe for recipe in (TINY_DENSE, TINY_HYBRID, TINY_MLA, TINY_SWA)}
