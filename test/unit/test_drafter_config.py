"""A new drafter's config, its mask token, published configs, conversion: what fits and what not."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from sglang_ddtree.dflash.checkpoint import coverage_problems, expected_tensors
from sglang_ddtree.drafter.errors import DrafterError, explain_os_error
from sglang_ddtree.drafter.files import append_line, whole_lines, write_tensors
from sglang_ddtree.drafter.model import config as drafter_config
from sglang_ddtree.drafter.model.target import read_ends
from sglang_ddtree.drafter.weights.convert import from_speculators
from sglang_ddtree.drafter.weights.export import write_drafter
from sglang_ddtree.drafter.weights.initialise import (
    Wishes,
    build_config,
    copy_target_layers,
    first_weights,
)
from sglang_ddtree.drafter.weights.mask_token import choose_mask_token
from unit.drafter_runs import FACTS

TARGET = replace(FACTS, hidden=32, intermediate=48, vocab=100, max_positions=256, rope_bases=(5e5,))
WISHES = Wishes(layers=2, block=4, target_layer_ids=(1, 3))
# In the keys and sizes of the drafters that z-lab publishes for Qwen3-8B.
QWEN3_8B = {
    "architectures": ["DFlashDraftModel"],
    "attention_bias": False,
    "block_size": 16,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "layer_types": ["full_attention"] * 5,
    "max_position_embeddings": 40960,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_target_layers": 36,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def test_new_config_has_the_targets_sizes_and_rope() -> None:
    config = build_config(TARGET, WISHES, 99, "<|mask|>")
    assert config["architectures"] == ["DFlashDraftModel"]
    assert (config["hidden_size"], config["vocab_size"]) == (32, 100)
    assert (config["rope_theta"], config["rope_scaling"]) == (5e5, None)
    assert config["num_target_layers"] == 6
    read = drafter_config.from_json(json.loads(json.dumps(config)))
    assert read.shape.rope_theta == 5e5
    assert (read.block, read.target_layer_ids, read.mask_token_id) == (4, (1, 3), 99)
    assert read.windows == (None, None)


def test_first_weights_are_what_the_config_promises(tmp_path: Path) -> None:
    config = build_config(TARGET, WISHES, 99, None)
    weights = first_weights(drafter_config.from_json(config), seed=3)
    shapes = {name: list(weight.shape) for name, weight in weights.items()}
    assert shapes == expected_tensors(config, 2)
    again = first_weights(drafter_config.from_json(config), seed=3)
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    write_drafter(tmp_path, config, weights, draft_vocabulary=torch.tensor([3, 5]))
    assert coverage_problems(tmp_path, 2) == []
    stored = load_file(tmp_path / "model.safetensors")
    assert stored["draft_token_ids"].tolist() == [3, 5]
    assert stored["fc.weight"].dtype == torch.bfloat16


def test_sliding_window_is_on_all_layers_but_the_last() -> None:
    wishes = replace(WISHES, layers=3, sliding_window=16)
    config = build_config(TARGET, wishes, 99, None)
    assert config["layer_types"] == ["sliding_attention"] * 2 + ["full_attention"]
    assert drafter_config.from_json(config).windows == (16, 16, None)


def test_latent_targets_are_no_guide_for_heads() -> None:
    latent = replace(TARGET, latent=True, heads=64, kv_heads=64, head_dim=192)
    config = build_config(latent, WISHES, 99, None)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (64, 8)
    assert config["head_dim"] == 128


@pytest.mark.parametrize(
    ("target", "wishes", "reason"),
    [
        ({"captures": False}, {}, "set_dflash_layers_to_capture"),
        ({}, {"target_layer_ids": (1, 5)}, "captures the outputs of layers 0..4"),
        ({}, {"target_layer_ids": (3, 3)}, "different ones"),
        ({}, {"target_layer_ids": (3, 1)}, "rising order"),
        ({}, {"block": 1}, "--block at least 2"),
        ({}, {"layers": 0}, "--layers must be at least 1"),
        ({}, {"kv_heads": 3}, "don't share 3 KV heads"),
        ({}, {"head_dim": 7}, "odd"),
        ({}, {"sliding_window": 4}, "must exceed the block"),
        ({"intermediate": None}, {}, "give --intermediate"),
        ({"rope_bases": ()}, {}, "rope_theta"),
    ],
)
def test_what_could_not_be_served_is_refused(
    target: dict[str, Any], wishes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DrafterError, match=reason):
        build_config(replace(TARGET, **target), replace(WISHES, **wishes), 99, None)


def test_published_config_is_read() -> None:
    read = drafter_config.from_json(QWEN3_8B)
    assert read.shape.rope_theta == 1e6
    assert read.target_layer_ids == (1, 9, 17, 25, 33)
    assert read.mask_token_id == 151669


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attention_bias": True}, "attention biases"),
        ({"hidden_act": "swigluoai"}, "swigluoai"),
        ({"rope_theta": None}, "must name rope_theta"),
        ({"dflash_config": {"target_layer_ids": [1]}}, "mask_token_id"),
        ({"is_causal": True}, "is_causal"),
        ({"speculators_model_type": "dflash"}, "convert it first"),
    ],
)
def test_configs_that_training_does_not_cover(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(DrafterError, match=reason):
        drafter_config.from_json({**QWEN3_8B, **changes})


SPECULATORS = {
    "speculators_model_type": "dflash",
    "aux_hidden_state_layer_ids": [2, 10, 18],
    "mask_token_id": 7,
    "block_size": 8,
    "draft_vocab_size": 100,
    "transformer_layer_config": {"hidden_size": 32, "vocab_size": 100, "num_hidden_layers": 2},
}


def test_speculators_config_is_converted() -> None:
    converted = from_speculators(SPECULATORS, target_layers=20)
    assert converted["dflash_config"] == {"mask_token_id": 7, "target_layer_ids": [1, 9, 17]}
    assert converted["block_size"] == 8
    assert converted["hidden_size"] == 32
    assert converted["num_target_layers"] == 20


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"speculators_model_type": "eagle3"}, "kind 'eagle3'"),
        ({"draft_vocab_size": 50}, "50 of 100 tokens"),
        ({"aux_hidden_state_layer_ids": [0, 3]}, "embedding"),
        ({"mask_token_id": None}, "lacks mask_token_id"),
    ],
)
def test_speculators_checkpoints_that_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(DrafterError, match=reason):
        from_speculators({**SPECULATORS, **changes}, target_layers=20)


class FakeTokenizer:
    """The few members of a transformers tokenizer that are read."""

    eos_token_id, bos_token_id, pad_token_id = 0, None, None

    def __init__(self, *tokens: str) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def get_vocab(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}


@pytest.mark.parametrize(
    ("tokens", "vocab", "chosen"),
    [
        (("<eos>", "a", "<|mask|>", "<|reserved_1|>"), 10, 2),
        (("<eos>", "a", "mask", "<|reserved_1|>"), 10, 3),
        (("<eos>", "a", "b"), 10, 9),
        (("<eos>", "<repo_name>", "b"), 3, 1),
    ],
)
def test_an_unused_token_becomes_the_mask(tokens: Any, vocab: int, chosen: int) -> None:
    assert choose_mask_token(FakeTokenizer(*tokens), vocab) == chosen


def test_mask_token_of_the_users_choice() -> None:
    tokenizer = FakeTokenizer("<eos>", "a", "b")
    assert choose_mask_token(tokenizer, 10, "b") == 2
    assert choose_mask_token(tokenizer, 10, "7") == 7
    with pytest.raises(DrafterError, match="no token 'c'"):
        choose_mask_token(tokenizer, 10, "c")
    with pytest.raises(DrafterError, match="has 10 tokens"):
        choose_mask_token(tokenizer, 10, "10")
    with pytest.raises(DrafterError, match="--mask-token"):
        choose_mask_token(tokenizer, 3)


def test_layers_are_copied_from_the_target(tmp_path: Path) -> None:
    config = drafter_config.from_json(build_config(TARGET, WISHES, 99, None))
    weights = first_weights(config, seed=0)
    theirs = {
        f"model.layers.{layer}.self_attn.{p}_proj.weight": torch.randn(
            weights[f"layers.0.self_attn.{p}_proj.weight"].shape
        )
        for layer in (4, 5)
        for p in "qkvo"
    }
    save_file(theirs, str(tmp_path / "model.safetensors"))
    copied = copy_target_layers(weights, str(tmp_path), [4, 5])
    source = theirs["model.layers.5.self_attn.q_proj.weight"]
    assert torch.equal(copied["layers.1.self_attn.q_proj.weight"], source)
    assert torch.equal(
        copied["layers.1.mlp.up_proj.weight"], weights["layers.1.mlp.up_proj.weight"]
    )
    save_file(
        {"model.layers.4.self_attn.q_proj.weight": torch.ones(3, 3)}, tmp_path / "z.safetensors"
    )
    with pytest.raises(DrafterError, match=r"\[3, 3\]"):
        copy_target_layers(weights, str(tmp_path), [4, 5])


def test_ends_of_a_target(tmp_path: Path) -> None:
    embedding, head = torch.randn(5, 3), torch.randn(5, 3)
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": false}')
    save_file({"model.embed_tokens.weight": embedding}, str(tmp_path / "a.safetensors"))
    with pytest.raises(DrafterError, match=r"no lm_head\.weight"):
        read_ends(str(tmp_path))
    save_file({"lm_head.weight": head}, str(tmp_path / "b.safetensors"))
    read = read_ends(str(tmp_path))
    assert torch.equal(read[0], embedding)
    assert torch.equal(read[1], head)
    with pytest.raises(DrafterError, match="no local folder"):
        read_ends("some/hub-name")


def test_a_cut_off_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    append_line(path, {"id": 1})
    with path.open("a") as file:
        file.write('{"id": 2, "te')
    assert whole_lines(path) == [{"id": 1}]
    append_line(path, {"id": 3})
    assert [record["id"] for record in whole_lines(path)] == [1, 3]


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    text = str(explain_os_error(OSError(errno.ENOSPC, "No space left on device", "/x/y")))
    assert "disk is full (/x/y)" in text
    assert "kept" in text


def test_a_full_disk_leaves_no_half_written_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tensors: Any, path: Path, **_: Any) -> None:
        path.write_bytes(b"half")
        # What safetensors 0.7 raises on a full tmpfs.
        raise SafetensorError("Error while serializing: I/O error: No space left (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(OSError, match="No space left") as caught:
        write_tensors(tmp_path / "out.safetensors", {"x": torch.zeros(9)})
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []
