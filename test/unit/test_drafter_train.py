"""``drafter train`` as users start it: killed, resumed, on two processes, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sglang_ddtree import cli
from sglang_ddtree.dflash.checkpoint import coverage_problems
from sglang_ddtree.drafter.run_folder import RunFolder
from sglang_ddtree.drafter.training.state import Checkpoints
from sglang_ddtree.drafter.training.train import trained_weights
from unit.drafter_runs import VOCAB, difference, finish, make_run, start


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that nothing interrupted."""
    run = make_run(tmp_path_factory.mktemp("whole"))
    finish(start(run))
    return run


def copy_untrained(run: RunFolder, folder: Path) -> RunFolder:
    shutil.copytree(run.path, folder, ignore=shutil.ignore_patterns("train"))
    steps = json.loads((folder / "run.json").read_text())
    steps.pop("train", None)
    (folder / "run.json").write_text(json.dumps(steps))
    return RunFolder(folder)


def log_of(run: RunFolder) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (run.training / "drafter.jsonl").open()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def test_the_drafter_learns(whole: RunFolder) -> None:
    log = log_of(whole)
    assert log[-1]["loss"] < 0.7 * log[0]["loss"]
    assert len(log[0]["hits"]) == 3
    assert log[-1]["hits"][0] > 0.3
    assert log[-1]["step"] == 59
    assert (whole.training / "drafter.png").read_bytes().startswith(b"\x89PNG")
    assert Checkpoints(whole.training / "drafter").finished() == [40, 60]
    assert json.loads((whole.path / "run.json").read_text())["train"]["versions"]["torch"]


def test_a_killed_run_resumes_to_the_same_weights(whole: RunFolder, tmp_path: Path) -> None:
    killed = copy_untrained(whole, tmp_path / "killed")
    process = start(killed)
    checkpoints = Checkpoints(killed.training / "drafter")
    deadline = time.monotonic() + 240
    while not checkpoints.finished():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.005)  # between looks at the condition
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert checkpoints.finished()[-1] < 60, "killed too late to show anything"
    # What a kill during a save leaves behind.
    (killed.training / "drafter" / "step-99.partial").mkdir()
    finish(start(killed))
    ours, _ = trained_weights(killed)
    theirs, _ = trained_weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert log_of(killed) == log_of(whole)


def test_two_processes_and_smaller_passes_train_as_one(whole: RunFolder, tmp_path: Path) -> None:
    pair = copy_untrained(whole, tmp_path / "pair")
    # The second process's passes are smaller, too: a text at a time.
    finish(start(pair, "--piece", "6", processes=2))
    ours, _ = trained_weights(pair)
    theirs, _ = trained_weights(whole)
    assert difference(theirs, ours) < 2e-3
    first = load_file(pair.drafter / "model.safetensors")
    assert difference(theirs, first) > 0.05, "nothing was learnt that could differ"
    for ours_line, theirs_line in zip(log_of(pair), log_of(whole), strict=True):
        assert ours_line["loss"] == pytest.approx(theirs_line["loss"], abs=2e-3)


def test_draft_vocabulary_and_dpace(whole: RunFolder, tmp_path: Path) -> None:
    run = copy_untrained(whole, tmp_path / "small")
    finish(start(run, "--draft-vocab", "9", "--dpace", "0.5"))
    weights, vocabulary = trained_weights(run)
    assert vocabulary is not None
    assert len(vocabulary) == 9
    assert int(vocabulary.max()) < VOCAB
    theirs, _ = trained_weights(whole)
    assert difference(theirs, weights) > 0.01, "another objective gives other weights"
    assert coverage_problems(run.drafter, 2) == []


def test_what_is_refused(
    whole: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["drafter", "train", "--steps", "60", "--batch", "4", "--anchors", "6"]
    assert cli.main([*command, "--work", str(whole.path)]) == 1
    assert "lr 0.01 (now 0.0006)" in capsys.readouterr().err
    assert cli.main([*command, "--work", str(tmp_path)]) == 1
    assert "run 'drafter init' first" in capsys.readouterr().err
    bare = copy_untrained(whole, tmp_path / "bare")
    shutil.rmtree(bare.shards)
    assert cli.main([*command, "--work", str(bare.path)]) == 1
    assert "run 'drafter capture' first" in capsys.readouterr().err
    assert cli.main([*command, "--work", str(bare.path), "--dpace", "2"]) == 1
    assert "--dpace" in capsys.readouterr().err
