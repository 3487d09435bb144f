"""Memory of one GPU: published configs, model folders, and the table that compares them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sglang_ddtree.cluster.commands.memory_table import memory_rows, memory_table
from sglang_ddtree.cluster.facts.config_facts import ConfigError, read_folder
from sglang_ddtree.cluster.facts.model_facts import MODELS, QWEN36_27B, model_facts
from sglang_ddtree.cluster.facts.models import KvLayers
from sglang_ddtree.cluster.planning.memory import Load, memory_bill
from sglang_ddtree.ops.gdn_tree import RecurrentShape, Stash
from unit.topology_files import RTX_PRO_6000

ASSETS = Path(__file__).resolve().parents[2] / "pairs"
QWEN3_NEXT = MODELS["qwen3-next-80b-a3b"]
KIMI = MODELS["kimi-k2.6"]


def rows_of(name: str, budget: int, concurrency: int = 8) -> dict[tuple[int, str | None], dict]:
    load = Load(concurrency, 8192, budget)
    rows = memory_rows(MODELS[name], load, RTX_PRO_6000)
    return {(row["tp"], row["recurrent"]): row for row in rows}


@pytest.mark.parametrize("name", ["qwen3.6-27b", "qwen3-next-80b-a3b"])
def test_a_stash_is_at_most_a_fortieth_of_snapshots(name: str) -> None:
    """Of the same slots: SGLang's pool has one more than running requests."""
    rows = rows_of(name, budget=64)
    for tp in (1, 4, 8):
        stash, snapshot = rows[tp, "stash"]["bytes"], rows[tp, "snapshot"]["bytes"]
        assert stash["tree stash"] * 40 <= snapshot["tree states"] * 8 / 9
        assert {key: stash[key] for key in stash.keys() & snapshot.keys()} == {
            key: snapshot[key] for key in stash.keys() & snapshot.keys()
        }


def test_a_node_of_qwen36_by_hand() -> None:
    """48 layers of 48 fp32 states of 128 x 128 and a window of 3 x 10,240 16-bit inputs; the stash
    has fp32 keys (16 heads), updates and decays (48) and one 16-bit row of inputs."""
    recurrent = QWEN36_27B.recurrent
    assert recurrent is not None
    assert recurrent.state_bytes == 48 * (48 * 128 * 128 * 4 + 3 * 10_240 * 2)
    assert recurrent.stash_bytes(1) == 48 * (4 * (16 * 128 + 48 * 128 + 48) + 2 * 10_240)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_the_stash_is_the_one_that_is_allocated(tp: int) -> None:
    shape = RecurrentShape(16 // tp, 32 // tp, 128, 128)
    live = Stash.allocate(shape, (36, 3, 65), dtype=torch.bfloat16, device="cpu")
    load = Load(batch=3, context=1024, budget=64)
    assert memory_bill(QWEN3_NEXT, tp, load).amount("tree stash") == live.nbytes


def test_kimi_fits_eight_gpus_and_four_only_in_part() -> None:
    rows = rows_of("kimi-k2.6", budget=31)
    assert {tp: row["fits"] for (tp, _), row in rows.items()} == {1: False, 4: False, 8: True}
    eight = rows[8, None]["bytes"]
    # A latent row of 576 16-bit elements in 61 layers is on every rank, whatever TP.
    assert eight["latent KV"] == rows[1, None]["bytes"]["latent KV"] == 8 * 8192 * 61 * 576 * 2
    assert eight["tree rows"] == 8 * 64 * 61 * 576 * 2
    assert {"weights", "workspace", "graphs"} <= set(eight)


def test_the_table_says_what_does_not_fit_and_by_how_much() -> None:
    lines = memory_table(KIMI, Load(8, 8192, 31), RTX_PRO_6000, sizes=(4, 8))
    assert [line.split()[0] for line in lines] == ["weights", "TP4", "TP8"]
    total = memory_bill(KIMI, 4, Load(8, 8192, 31)).total
    assert lines[1].endswith(f"does not fit 102.6: {(total - RTX_PRO_6000) / 1e9:.1f} over")
    assert lines[2].endswith("fits 102.6")
    assert len({len(line.split("  fits")[0].split("  does")[0]) for line in lines}) == 1
    hybrid = memory_table(QWEN36_27B, Load(8, 8192, 64), RTX_PRO_6000)
    assert [line.split()[:2] for line in hybrid[1:7]] == [
        [f"TP{tp}", mode] for tp in (1, 4, 8) for mode in ("stash", "snapshot")
    ]
    assert "153.9 MB as a snapshot, 2.57 MB in the stash, 1/60" in hybrid[-1]


def test_a_model_on_disk() -> None:
    pair = ASSETS / "tiny-dense"
    facts = model_facts(str(pair / "target"), str(pair / "drafter"))
    config = json.loads((pair / "target/config.json").read_text())
    assert (facts.layers, facts.hidden, facts.heads) == (4, 192, 6)
    assert facts.kv == (KvLayers(4, heads=2, row=2 * 64, score=2 * 64),)
    assert facts.weight_bytes == (pair / "target/model.safetensors").stat().st_size
    # Tied: the table is read by every step as the head.
    assert facts.head_bytes == 2 * config["vocab_size"] * 192
    assert facts.embedding_bytes == 0
    assert (facts.drafter.block, facts.drafter.layers, facts.drafter.captured) == (16, 3, 3)
    assert model_facts(str(pair / "target")).drafter.layers == 0


HYBRID = {
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 4,
    "vocab_size": 32,
    "max_position_embeddings": 64,
    "dtype": "float32",
}


def test_configs_of_any_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": HYBRID}))
    (tmp_path / "model-1.safetensors").write_bytes(b"x" * 20_000)
    facts = read_folder(tmp_path)
    assert facts.recurrent is not None
    assert (facts.recurrent.layers, sum(kv.layers for kv in facts.kv)) == (3, 1)
    # No head_dim: hidden over heads. Experts: gate, up and down of each, in four bytes.
    assert facts.kv[0].row == 2 * 2
    assert facts.expert_bytes == 4 * 8 * 3 * 8 * 4 * 4
    table = 32 * 8 * 4
    assert facts.active_params == (20_000 - table - facts.expert_bytes * 6 // 8) // 4


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no config.json"),
        ({"config.json": "{"}, "is no JSON"),
        ({"config.json": "{}"}, r"no \*\.safetensors"),
        ({"config.json": "{}", "a.safetensors": "x"}, "config has no 'num_hidden_layers'"),
    ],
)
def test_folders_that_are_no_model(tmp_path: Path, files: dict[str, str], words: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_folder(tmp_path)


def test_a_folder_that_is_no_drafter() -> None:
    target = ASSETS / "tiny-dense" / "target"
    with pytest.raises(ConfigError, match="no DFlash drafter"):
        read_folder(target, target)
