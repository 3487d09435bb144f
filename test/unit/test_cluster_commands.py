"""``sglang-ddtree plan`` and what ``launch`` refuses, as a user types them."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from sglang_ddtree.cli import main
from sglang_ddtree.cluster.machine import discover
from sglang_ddtree.cluster.machine.discover import NvmlUnavailable
from unit.topology_files import DIRECTORY

BOX = ("--topology", str(DIRECTORY / "two_sockets_switches_ansi.txt"))
QWEN = ("plan", "--model", "qwen3.6-27b")
KIMI = ("plan", "--model", "kimi-k2.6")


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answers on a machine with GPUs."""

    def unavailable() -> None:
        raise NvmlUnavailable("NVML does not start: none here")

    monkeypatch.setattr(discover, "PyNvml", unavailable)


def test_a_plan_of_the_two_socket_box(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QWEN, *BOX, "--tp", "4", "--budget", "31"]) == 0
    out = capsys.readouterr().out
    assert "102.6 GB assumed, an RTX PRO 6000 (--gpu-memory)" in out
    assert "replica 1: GPUs 4,5,6,7 in rank order, NUMA 1" in out
    assert "TP4 snapshot" in out
    assert "Predicted tok/s" in out
    assert "--speculative-ddtree-budget 31" in out
    assert "sglang_router.launch_router" in out


def test_memory_alone_where_there_is_no_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QWEN, "--budget", "64", "--concurrency", "8"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("no plan, memory only: NVML does not start: none here; ")
    for words in ("TP1 stash", "TP1 snapshot", "TP4 stash", "TP8 snapshot", "tree stash", "1/60"):
        assert words in out
    assert main([*KIMI, "--tp", "8", "--budget", "31"]) == 0
    out = capsys.readouterr().out
    for words in ("weights", "latent KV", "tree rows", "workspace", "fits 102.6"):
        assert words in out
    assert main([*KIMI, "--tp", "4", "--budget", "31"]) == 1
    assert "does not fit 102.6: " in capsys.readouterr().out


def test_json_is_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QWEN, *BOX, "--concurrency", "1", "--json", "--gpu-memory", "96"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["chosen"]["groups"][0]["gpus"] == [0, 1, 2, 3]
    assert plan["topology"]["gpus"][0]["memory_bytes"] == 96 << 30
    assert not plan["assumed_memory"]
    assert {row["recurrent"] for row in plan["memory"]} == {"stash", "snapshot"}
    cells = {(c["tp"], c["concurrency"], c["budget"]): c for c in plan["predictions"]}
    chosen = cells[4, 1, plan["budget"]]["tokens_per_second"]
    assert chosen == pytest.approx(plan["chosen"]["tokens_per_second"])
    assert main([*KIMI, "--json", "--tp", "8"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"][0]["fits"]


def test_plot_is_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    path = tmp_path / "plan.png"
    assert main([*QWEN, *BOX, "--plot", str(path)]) == 0
    assert "Predicted tok/s" in capsys.readouterr().out
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.size == (1320, 540)
        assert len(image.convert("RGB").getcolors(1 << 20) or ()) > 10


def test_a_probe_file_turns_the_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Measured all-reduces lift TP8; a measured step of TP8 that is slow pushes it down again."""
    table = {"transport": "nccl", "ranks": 8, "crosses": True, "points": [[1, 5], [1_000_000, 20]]}
    step = {"model": "qwen3.6-27b", "tp": 8, "batch": 1, "budget": 15, "context": 8192, "ms": 500}
    path = tmp_path / "probe.json"
    for probe, chosen in (
        ({"allreduce": [table]}, "1 x TP8"),
        ({"allreduce": [table], "steps": [step]}, "1 x TP4"),
    ):
        path.write_text(json.dumps(probe))
        assert main([*QWEN, *BOX, "--concurrency", "1", "--probe", str(path)]) == 0
        assert f"budget 15: {chosen}, " in capsys.readouterr().out


def test_several_machines(capsys: pytest.CaptureFixture[str]) -> None:
    """Kimi does not fit four GPUs, but two machines with four each."""
    four = ("--topology", str(DIRECTORY / "four_on_one_socket.txt"))
    assert main([*KIMI, *four]) == 1
    assert "weights" in capsys.readouterr().err
    nodes = ("--nodes", "2", "--dist-init-addr", "10.0.0.1:5000")
    assert main([*KIMI, *four, *nodes, "--tp", "8"]) == 0
    out = capsys.readouterr().out
    assert "1 x TP8 over 2 machines" in out
    assert out.count("python -m sglang.launch_server") == 2
    assert out.count("--tp-size 8") == 2
    assert "--node-rank 1" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*QWEN, "--topology", "missing.txt"), "missing.txt: No such file"),
        ((*QWEN, "--topology", __file__), "line 1: "),
        ((*QWEN, *BOX, "--probe", "missing.json"), "missing.json: No such file"),
        ((*QWEN, *BOX, "--context", "300000"), "300000 tokens are beyond the 262144"),
        ((*QWEN, *BOX, "--concurrency", "0"), "concurrency must be positive"),
        ((*QWEN, *BOX, "--nodes", "2"), "need the address of the first"),
        ((*QWEN, *BOX, "--nodes", "2", "--tp", "3"), "--tp 3 does not divide over --nodes 2"),
        (("plan", "--model", "gpt-2"), "no facts about 'gpt-2': name a model folder, or one of"),
        (("plan", "--model", str(DIRECTORY)), "has no config.json"),
        (("launch", "--model", "qwen3-8b"), "NVML does not start: none here; without GPUs add"),
        (("launch", "--model", "qwen3-8b", *BOX), "leave out --topology, or use plan"),
        (
            ("launch", "--device", "cpu", "--model", "tiny-dense", "--tp", "0"),
            "launch serves nothing with --tp 0",
        ),
        (("probe", "--model", "qwen3-8b", "--out", "x"), "NVML does not start"),
    ],
)
def test_senseless_arguments(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err


def test_a_taken_port(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ["launch", "--device", "cpu", "--model", "tiny-dense", "--port", port]
        assert main(arguments) == 2
    assert f"something already listens on http://127.0.0.1:{port}" in capsys.readouterr().err
