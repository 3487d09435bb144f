"""From a served target to a drafter that serves: every step of the pipeline, on a tiny target."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from common.equality import accept_length
from common.server import Server
from transformers import AutoModelForCausalLM

from server.configurations import COMMON, PAIR, Servers
from server.drafter_steps import SERVER_FLAGS, run, run_stopped
from server.oracle import Oracle
from sglang_ddtree import cli
from sglang_ddtree.drafter.data.generate import read_answers
from sglang_ddtree.drafter.data.samples import Sample, read_sample, sample_files
from sglang_ddtree.drafter.run_folder import RunFolder

LAYERS = (0, 1, 2)
TRAINED_ON, HELD_OUT = 24, 6
TOP = 8  # likeliest tokens captured at each position


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Prompts to train on and held-out ones: chats, every other one as plain text."""
    folder = tmp_path_factory.mktemp("prompts")
    records = [r for r in PAIR.prompts() if "messages" in r][: TRAINED_ON + HELD_OUT]
    keys = ("messages", "prompt")
    kept = [{keys[i % 2]: record[keys[i % 2]]} for i, record in enumerate(records)]
    parts = {"train": kept[HELD_OUT:], "held-out": kept[:HELD_OUT]}
    for name, part in parts.items():
        (folder / name).write_text("".join(json.dumps(record) + "\n" for record in part))
    return {name: folder / name for name in parts}


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, servers: Servers, prompts: dict[str, Path]
) -> RunFolder:
    """A run through all steps; the capture is stopped early, and again after its last sample."""
    work = tmp_path_factory.mktemp("drafter") / "run"
    url = servers.get("plain").url
    run(
        "init", work, "--target", str(PAIR.target), "--layers", "2", "--block", "8",
        "--target-layers", ",".join(map(str, LAYERS)),
    )  # fmt: skip
    run(
        "generate", work, "--server", url, "--prompts", str(prompts["train"]),
        "--temperatures", "0,0.7", "--max-tokens", "64", "--concurrency", "4",
    )  # fmt: skip
    capture = ["--dtype", "target", "--batch", "2", "--top", str(TOP), "--", *SERVER_FLAGS]
    # Chunks shorter than a prompt: a sample's rows come in several.
    capture += ["--chunked-prefill-size", "64"]
    folder = RunFolder(work)
    run_stopped("capture", work, 5, *capture)
    before = {file: file.stat().st_mtime_ns for file in sample_files(folder.shards)}
    assert len(before) == 5
    run_stopped("capture", work, 2 * TRAINED_ON - 5, *capture)
    run("capture", work, *capture)
    assert all(file.stat().st_mtime_ns == stamp for file, stamp in before.items()), "kept"
    run(
        "train", work, "--steps", "120", "--batch", "4", "--anchors", "24", "--lr", "3e-3",
        "--muon-lr", "0.02", "--warmup", "10", "--save-every", "60", "--distil", "0.5",
    )  # fmt: skip
    run("export", work)
    return folder


def speculating(made: RunFolder, algorithm: str, *flags: str) -> Server:
    """A server with the trained drafter, not yet started."""
    drafter = ["--speculative-draft-model-path", str(made.exported)]
    return Server(PAIR.target, (*COMMON, "--speculative-algorithm", algorithm, *drafter, *flags))


@pytest.fixture(scope="module")
def tree(made: RunFolder) -> Iterator[Server]:
    with speculating(made, "DDTREE", "--speculative-ddtree-budget", "15") as server:
        yield server


def test_answers_are_the_targets_own_tokens(made: RunFolder, oracle: Oracle) -> None:
    answers = read_answers(made.answers)
    assert len(answers) == 2 * TRAINED_ON
    for answer in [a for a in answers if a["temperature"] == 0][:6]:
        text = oracle.reference.tokenizer.decode(answer["prompt_ids"])
        assert oracle.reference.encode(text) == answer["prompt_ids"]
        written = answer["output_ids"]
        assert oracle.reference.greedy_mismatch(answer["prompt_ids"], written) is None
        if answer["finish_reason"] == "stop":
            assert written[-1] == oracle.reference.tokenizer.eos_token_id


def test_captured_states_are_those_of_transformers(made: RunFolder) -> None:
    model = AutoModelForCausalLM.from_pretrained(PAIR.target, dtype=torch.float32).eval()
    files = sample_files(made.shards)
    assert len(files) == 2 * TRAINED_ON
    by_line = {(a["line"], a["temperature"]): a for a in read_answers(made.answers)}
    for file in files:
        sample, (line, temperature) = read_sample(file), file.stem.split("-")
        answer = by_line[int(line), float(temperature)]
        assert sample.input_ids.tolist() == answer["prompt_ids"] + answer["output_ids"]
        assert int(sample.loss_mask.sum()) == len(answer["output_ids"])
        assert not sample.loss_mask[: len(answer["prompt_ids"])].any()
        with torch.inference_mode():
            output = model(sample.input_ids[None], output_hidden_states=True)
        states = output.hidden_states
        expected = torch.cat([states[layer + 1][0] for layer in LAYERS], dim=-1)
        torch.testing.assert_close(sample.hidden_states, expected, rtol=1e-3, atol=1e-3)
        check_likeliest(sample, output.logits[0], len(answer["prompt_ids"]))


def check_likeliest(sample: Sample, logits: torch.Tensor, start: int) -> None:
    """The captured distributions are those that ``logits [n, vocab]`` give the next tokens."""
    top = sample.likeliest
    assert top is not None
    assert not top.probs[:start].any()
    expected = logits.softmax(-1)[start - 1 : -1]
    found = expected.gather(1, top.tokens[start:].long())
    torch.testing.assert_close(top.probs[start:].float(), found, rtol=0.01, atol=1e-3)
    torch.testing.assert_close(found, expected.topk(TOP).values, rtol=1e-3, atol=1e-4)


def check_answers(server: Server, oracle: Oracle) -> list[dict]:
    """Held-out prompts answered as plain decoding answers them."""
    prompts = [record["prompt"] for record in PAIR.prompts(HELD_OUT)]
    answers = [server.generate(text, max_new_tokens=48, ignore_eos=True) for text in prompts]
    for text, answer in zip(prompts, answers, strict=True):
        oracle.check_tokens(text, answer["output_ids"], oracle.tokens(text, 48))
    return answers


def test_the_trained_drafter_serves_and_loses_nothing(tree: Server, oracle: Oracle) -> None:
    assert accept_length(check_answers(tree, oracle)) > 1.15


def test_stock_dflash_serves_it_too(made: RunFolder, tree: Server, oracle: Oracle) -> None:
    with speculating(made, "DFLASH") as stock:
        chain = accept_length(check_answers(stock, oracle))
    assert 1.1 < chain <= accept_length(check_answers(tree, oracle))


def evaluate(work: Path, tree: Server, prompts: Path, *extra: str) -> dict:
    output = work.parent / f"eval{len(extra)}"
    flags = ["--", *SERVER_FLAGS]
    run(
        "eval", work, "--server", tree.url, "--prompts", str(prompts), "--temperatures", "0",
        "--budgets", "15", "--max-tokens", "64", "--output", str(output), *extra, *flags,
    )  # fmt: skip
    assert (output / "results.png").read_bytes().startswith(b"\x89PNG")
    return json.loads((output / "results.json").read_text())["0"]


def test_evaluation_foretells_what_serving_gives(
    made: RunFolder, tree: Server, prompts: dict[str, Path]
) -> None:
    trained = evaluate(made.path, tree, prompts["held-out"])
    untrained = evaluate(made.path, tree, prompts["held-out"], "--drafter", str(made.drafter))
    steps = trained["tokens_per_step"]
    assert steps["chain"] > 1.15 * untrained["tokens_per_step"]["chain"]
    assert trained["hit_rates"][0][0] > 2 * untrained["hit_rates"][0][0] + 0.1
    answers = read_answers(made.path.parent / "eval0" / "answers.jsonl")
    served = []
    for answer in answers:
        params = {"temperature": 0, "max_new_tokens": 64}
        body = {"input_ids": answer["prompt_ids"], "sampling_params": params}
        reply = tree.post("/generate", body).json()
        assert reply["output_ids"] == answer["output_ids"]
        served.append(reply)
    assert accept_length(served) == pytest.approx(steps["budget 15"], rel=0.03)


def test_a_fitted_drafter_foresees_before_it_is_trained(
    made: RunFolder, tree: Server, prompts: dict[str, Path], tmp_path: Path
) -> None:
    skipped = shutil.ignore_patterns(made.training.name, made.exported.name, "run.json")
    work = Path(shutil.copytree(made.path, tmp_path / "run", ignore=skipped))
    told = run("fit", work, "--target", str(PAIR.target))
    assert f"fitted to {2 * TRAINED_ON} texts" in told
    first = (RunFolder(work).drafter / "model.safetensors").read_bytes()
    run("fit", work, "--target", str(PAIR.target))
    assert (RunFolder(work).drafter / "model.safetensors").read_bytes() == first
    drafter = ("--target", str(PAIR.target), "--drafter", str(RunFolder(work).drafter))
    fitted = evaluate(work, tree, prompts["held-out"], *drafter)
    assert fitted["hit_rates"][0][0] > 0.3
    assert fitted["tokens_per_step"]["chain"] > 1.3


def test_fitting_comes_before_training(made: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["drafter", "fit", "--work", str(made.path)]) == 1
    assert "was begun from other weights: fit before you train" in capsys.readouterr().err


def test_training_while_capturing_is_training_from_files(made: RunFolder, tmp_path: Path) -> None:
    """The same texts and blocks step by step; prefilled in other batches, so not bit for bit."""
    flags = ["--steps", "5", "--batch", "3", "--anchors", "8", "--warmup", "2", "--log-every", "1"]
    flags += ["--distil", "0.5"]
    online = ["--online", "--top", str(TOP), "--", *SERVER_FLAGS]
    losses = []
    for name, mode in {"files": [], "online": online}.items():
        skipped = shutil.ignore_patterns(made.training.name, made.exported.name, "run.json")
        work = Path(shutil.copytree(made.path, tmp_path / name, ignore=skipped))
        run("train", work, "--target", str(PAIR.target), *flags, *mode)
        log = RunFolder(work).training / "drafter.jsonl"
        losses.append([json.loads(line)["loss"] for line in log.read_text().splitlines()])
    assert len(losses[0]) == 5
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_a_target_without_the_capture_hook(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    for file in PAIR.target.iterdir():
        os.symlink(file, target / file.name)
    config = json.loads((PAIR.target / "config.json").read_text())
    (target / "config.json").unlink()
    (target / "config.json").write_text(
        json.dumps({**config, "architectures": ["GPT2LMHeadModel"]})
    )
    command = ["init", "--target", str(target), "--work", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "sglang_ddtree.cli", "drafter", *command],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert "GPT2LMHeadModel has no set_dflash_layers_to_capture" in done.stderr
    assert "Traceback" not in done.stderr


def validate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = cli.main(["drafter", "validate", "--target", str(PAIR.target), *arguments])
    return status, capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"hidden_size": 64}, "hidden size is 64"),
        ({"vocab_size": 99}, "vocabulary has 99"),
        ({"dflash_config": {"mask_token_id": 5000, "target_layer_ids": [0, 1, 2]}}, "mask token"),
        ({"dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 9]}}, "layers [9]"),
        ({"dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 1, 3]}}, "last layer, 3"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "a plain DFlash drafter"),
        ({"rope_scaling": {"rope_type": "bent", "factor": 2.0}}, "rope"),
        ({"layer_types": ["full_attention"]}, "1 entries for 3 layers"),
        ({"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}, "layers.2."),
    ],
)
def test_validate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict, problem: str | None
) -> None:
    config = json.loads((PAIR.drafter / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    os.symlink(PAIR.drafter / "model.safetensors", tmp_path / "model.safetensors")
    status, output = validate(capsys, str(tmp_path))
    assert status == (problem is not None), output
    assert problem is None or problem in output


def test_validate_looks_at_tensor_parallelism_and_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, output = validate(capsys, str(PAIR.drafter), "--tp", "4")
    assert status == 1
    assert "--tp-size 4" in output
    (tmp_path / "config.json").write_text((PAIR.drafter / "config.json").read_text())
    assert validate(capsys, str(tmp_path))[0] == 1
    assert validate(capsys, str(tmp_path), "--config-only")[0] == 0
