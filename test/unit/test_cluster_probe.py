"""The probe on gloo, against a served stand-in, and how a plan reads what it writes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sglang_ddtree.cli import main
from sglang_ddtree.cluster.commands.probe import verify_rows
from sglang_ddtree.cluster.facts.model_facts import QWEN3_8B
from sglang_ddtree.cluster.planning.cost import Figures, MeasuredStep, Placement, step_time
from sglang_ddtree.cluster.planning.memory import Load
from sglang_ddtree.cluster.probe import allreduce_probe
from sglang_ddtree.cluster.probe.allreduce_probe import Candidate, ProbeFailed, measure
from sglang_ddtree.cluster.probe.served_probe import measure_steps
from unit.topology_files import DIRECTORY

TARGET = Path(__file__).resolve().parents[2] / "pairs/tiny-dense/target"
STEP_S = 0.02


def test_probe_writes_what_plan_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "probe.json"
    arguments = ["probe", "--device", "cpu", "--model", str(TARGET), "--out", str(out)]
    arguments += ["--budgets", "7", "--batches", "1", "4", "--iterations", "3"]
    assert main(arguments) == 0
    assert "gloo over 0,1 inside a domain: " in capsys.readouterr().out
    probe = json.loads(out.read_text())
    (table,) = probe["allreduce"]
    assert (table["transport"], table["ranks"], table["crosses"]) == ("gloo", 2, False)
    # Rows of plain decoding and of a tree of seven nodes, for one and four requests; bf16.
    assert [size for size, _ in table["points"]] == [2 * 192 * rows for rows in (1, 4, 8, 32)]
    assert all(0 < us < 1e6 for _, us in table["points"])
    box = str(DIRECTORY / "two_sockets_switches_ansi.txt")
    plan = ["plan", "--model", "qwen3-8b", "--topology", box, "--probe", str(out), "--tp", "2"]
    assert main([*plan, "--transport", "gloo", "--json"]) == 0
    step = json.loads(capsys.readouterr().out)["chosen"]["step_ms"]
    assert not step["upper_bound"]
    assert step["verify_reduces"] > 0
    assert main([*plan, "--transport", "smoke-signals"]) == 0
    assert "no figures for smoke-signals over 2 ranks of one socket" in capsys.readouterr().out


def test_sizes_are_those_of_verify_steps() -> None:
    """Plain, the drafter's chain and the trees, each times the batch."""
    assert verify_rows(QWEN3_8B, [31], [1, 8]) == [1, 8, 16, 32, 128, 256]


def test_a_group_that_hangs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allreduce_probe, "TIMEOUT_S", 0.5)
    with pytest.raises(ProbeFailed, match=r"no end after 0 s, so it hangs here"):
        measure(Candidate("gloo", (0, 1), False), [1], 8, iterations=1)


def test_a_group_that_fails_says_why() -> None:
    with pytest.raises(ProbeFailed, match=r"gloo over 0,1 inside a domain: rank \d: \w+: "):
        measure(Candidate("gloo", (0, 1), False, cores=((10**6,), (10**6,))), [1], 8, 1)


class Streaming(BaseHTTPRequestHandler):
    """A server that streams ten steps of four tokens, the first with the prefill."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        for step in range(11):
            info: dict[str, Any] = {"prompt_tokens": 20, "completion_tokens": 1 + 4 * step}
            if self.server.speculates:  # type: ignore[attr-defined]
                info["spec_verify_ct"] = step
            self.wfile.write(b"data: " + json.dumps({"meta_info": info}).encode() + b"\n\n")
            self.wfile.flush()
            time.sleep(STEP_S)  # the step
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(params=[True, False], ids=["tree", "plain"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, bool]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Streaming)
    server.speculates = request.param  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", request.param
    server.shutdown()
    server.server_close()
    thread.join()


def test_steps_of_a_server(served: tuple[str, bool]) -> None:
    url, speculates = served
    one, two = measure_steps(url, "m", tp=2, budget=31, batches=[1, 2], rounds=1)
    # Plain decoding has a step for each token, so four of them in the same time.
    expected = 1e3 * STEP_S / (1 if speculates else 4)
    for step, batch in ((one, 1), (two, 2)):
        assert (step.model, step.tp, step.batch, step.budget) == ("m", 2, batch, 31)
        assert step.context == 20 + 41 // 2
        assert expected <= step.ms < 10 * expected


def test_predictions_are_scaled_to_measured_steps() -> None:
    load, place = Load(batch=4, context=2048, budget=31), Placement(1)
    plain = step_time(QWEN3_8B, place, load)
    step = MeasuredStep("qwen3-8b", 1, 4, 31, 2048, ms=3 * plain.total)
    figures = Figures(steps=(step,))
    assert step_time(QWEN3_8B, place, load, figures).total == pytest.approx(3 * plain.total)
    wider = Load(batch=8, context=2048, budget=63)
    scaled = step_time(QWEN3_8B, place, wider, figures)
    assert scaled.total == pytest.approx(3 * step_time(QWEN3_8B, place, wider).total)
    # Other sizes and models keep their own.
    four = Placement(4)
    assert step_time(QWEN3_8B, four, load, figures) == step_time(QWEN3_8B, four, load)


def test_a_broken_step_is_named() -> None:
    with pytest.raises(ValueError, match=r"probe\.json: steps\[0\]: KeyError\('batch'\)"):
        Figures().with_probe({"steps": [{"model": "m", "tp": 1}]}, "probe.json")
