"""Drafter checkpoints that are complete, and those that are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sglang_ddtree.dflash.checkpoint import (
    DRAFT_VOCABULARY,
    coverage_problems,
    vocabulary_problems,
)

CONFIG = {
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
}
# Written out from the parameters of z-lab's published DFlash drafters.
TENSORS = {
    "fc.weight": (8, 24),
    "hidden_norm.weight": (8,),
    "norm.weight": (8,),
    "layers.0.input_layernorm.weight": (8,),
    "layers.0.post_attention_layernorm.weight": (8,),
    "layers.0.self_attn.q_proj.weight": (24, 8),
    "layers.0.self_attn.k_proj.weight": (12, 8),
    "layers.0.self_attn.v_proj.weight": (12, 8),
    "layers.0.self_attn.o_proj.weight": (8, 24),
    "layers.0.self_attn.q_norm.weight": (6,),
    "layers.0.self_attn.k_norm.weight": (6,),
    "layers.0.mlp.gate_proj.weight": (12, 8),
    "layers.0.mlp.up_proj.weight": (12, 8),
    "layers.0.mlp.down_proj.weight": (8, 12),
}
LAYERS_READ = 3

Checkpoint = Callable[..., list[str]]


@pytest.fixture
def problems_of(tmp_path: Path) -> Checkpoint:
    """Write a drafter with some tensors changed (``None``: left out) and look at it."""

    def check(changes: dict[str, tuple[int, ...] | None] | None = None, **config: object):
        shapes = {**TENSORS, **(changes or {})}
        tensors = {name: torch.zeros(shape) for name, shape in shapes.items() if shape is not None}
        (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **config}))
        save_file(tensors, str(tmp_path / "model.safetensors"))
        return coverage_problems(tmp_path, LAYERS_READ)

    return check


def test_complete_checkpoint(problems_of: Checkpoint) -> None:
    assert problems_of() == []


def test_tensors_may_carry_the_model_prefix(problems_of: Checkpoint) -> None:
    renamed = {f"model.{name}": shape for name, shape in TENSORS.items()}
    assert problems_of({**dict.fromkeys(TENSORS), **renamed}) == []


def test_embedding_and_head_of_the_target_are_harmless(problems_of: Checkpoint) -> None:
    assert problems_of({"embed_tokens.weight": (50, 8), "lm_head.weight": (50, 8)}) == []


@pytest.mark.parametrize("name", sorted(TENSORS))
def test_every_tensor_is_missed(problems_of: Checkpoint, name: str) -> None:
    (problem,) = problems_of({name: None})
    assert name in problem
    assert "lacks" in problem


@pytest.mark.parametrize("name", sorted(TENSORS))
def test_every_shape_is_checked(problems_of: Checkpoint, name: str) -> None:
    wrong = (TENSORS[name][0] + 1, *TENSORS[name][1:])
    (problem,) = problems_of({name: wrong})
    assert name in problem
    assert str(list(TENSORS[name])) in problem
    assert str(list(wrong)) in problem


def test_unknown_tensors_are_named(problems_of: Checkpoint) -> None:
    (problem,) = problems_of({"layers.0.self_attn.gate.weight": (8,), "layers.1.norm.bias": (8,)})
    assert "layers.0.self_attn.gate.weight, layers.1.norm.bias" in problem


def test_projection_biases_follow_the_config(problems_of: Checkpoint) -> None:
    biases: dict[str, tuple[int, ...] | None] = {
        "layers.0.self_attn.q_proj.bias": (24,),
        "layers.0.self_attn.k_proj.bias": (12,),
        "layers.0.self_attn.v_proj.bias": (12,),
        "layers.0.self_attn.o_proj.bias": (8,),
    }
    assert problems_of(biases, attention_bias=True) == []
    assert len(problems_of(biases)) == 1
    assert len(problems_of(attention_bias=True)) == 1


def test_layers_that_the_config_counts_but_the_file_lacks(problems_of: Checkpoint) -> None:
    (problem,) = problems_of(num_hidden_layers=2)
    assert "layers.1." in problem
    assert "and 7 more" in problem


@pytest.mark.parametrize(
    ("tensor", "head"),
    [
        ("prefix_gru.weight_ih_l0", "Domino"),
        ("embed_proj.0.weight", "Domino"),
        ("candidate_selector.proj.weight", "DFlash2 selector"),
        ("lilicorr.token_proj.weight", "LiLiCorr"),
    ],
)
def test_heads_that_are_not_driven_are_named(
    problems_of: Checkpoint, tensor: str, head: str
) -> None:
    (problem,) = problems_of({tensor: (8, 8)})
    assert head in problem


def test_tensors_are_collected_from_all_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    names = sorted(TENSORS)
    for part, chosen in enumerate((names[::2], names[1::2])):
        tensors = {name: torch.zeros(TENSORS[name]) for name in chosen}
        save_file(tensors, str(tmp_path / f"model-{part}.safetensors"))
    assert coverage_problems(tmp_path, LAYERS_READ) == []


def test_other_formats_are_left_to_sglang(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "pytorch_model.bin").touch()
    assert coverage_problems(tmp_path, LAYERS_READ) == []


@pytest.mark.parametrize(
    ("ids", "fits"),
    [
        (torch.tensor([0, 3, 9]), True),
        (torch.tensor([0, 3, 10]), False),
        (torch.tensor([3, 0, 9]), False),
        (torch.tensor([3, 3, 9]), False),
        (torch.tensor([-1, 3]), False),
        (torch.tensor([0, 3], dtype=torch.int32), False),
        (torch.tensor([[0, 3]]), False),
        (torch.zeros(0, dtype=torch.int64), False),
    ],
)
def test_draft_vocabulary(tmp_path: Path, ids: torch.Tensor, fits: bool) -> None:
    save_file({DRAFT_VOCABULARY: ids}, str(tmp_path / "model.safetensors"))
    problems = vocabulary_problems(tmp_path, 10)
    assert problems == [] if fits else "below 10" in problems[0]


def test_no_draft_vocabulary(tmp_path: Path) -> None:
    save_file({"norm.weight": torch.zeros(3)}, str(tmp_path / "model.safetensors"))
    assert vocabulary_problems(tmp_path, 10) == []
