"""scripts/serve.sh: what SGLang is launched with, the ready line, and how it ends."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path
from typing import IO

import pytest

from unit.checkout import FAKE_SERVER, Checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def served(checkout: Checkout, *flags: str) -> list[str]:
    """The arguments SGLang is launched with, by a serve.sh given these flags."""
    result = checkout.run("serve.sh", *flags)
    assert result.returncode == 0, result.stderr
    launched = result.stdout.splitlines()
    assert launched[:2] == ["-m", "sglang.launch_server"]
    return launched[2:]


def value(arguments: list[str], flag: str) -> str:
    """As argparse reads it: the last one given counts."""
    return arguments[len(arguments) - arguments[::-1].index(flag)]


PORT = ["--port", "1"]  # nothing listens there, so scripts under test never meet a real server


def test_serve_defaults_to_smollm2(checkout: Checkout) -> None:
    arguments = served(checkout, *PORT)
    assert value(arguments, "--model-path") == str(checkout.home / "SmolLM2")
    assert value(arguments, "--speculative-draft-model-path") == checkout.drafter("smollm2")
    assert value(arguments, "--served-model-name") == "smollm2"
    assert value(arguments, "--speculative-algorithm") == "DDTREE"
    assert value(arguments, "--dtype") == "float32"
    assert value(arguments, "--speculative-ddtree-budget") == "3"
    assert "--no-speculative-ddtree-spine" in arguments


def test_serve_takes_a_larger_tree_on_a_gpu(checkout: Checkout) -> None:
    result = checkout.run("serve.sh", *PORT, SGLANG_DDTREE_KIND="gpu")
    assert result.returncode == 0, result.stderr
    arguments = result.stdout.splitlines()
    assert value(arguments, "--speculative-ddtree-budget") == "15"
    assert not {"--no-speculative-ddtree-spine", "--device"} & set(arguments)


@pytest.mark.parametrize("flags", [["--pair", "tiny-mla"], ["--pair=tiny-mla"]])
def test_serve_takes_another_bundled_pair(checkout: Checkout, flags: list[str]) -> None:
    arguments = served(checkout, *flags, *PORT)
    assert value(arguments, "--model-path").endswith("/pairs/tiny-mla/target")
    assert value(arguments, "--speculative-draft-model-path") == checkout.drafter("tiny-mla")
    assert not [argument for argument in arguments if argument.startswith("--pair")]
    assert not checkout.calls("-m sglang_ddtree.drafter.smollm2"), "nothing is fetched for it"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--pair", "tiny-none"], "no pair 'tiny-none'; there are smollm2 tiny-dense tiny-mla"),
        (["--pair", "tiny-mla", "--model-path", "m"], "--pair and --model-path are two targets"),
        (["--pair"], "--pair needs a name"),
    ],
)
def test_serve_refuses_what_names_no_target(
    checkout: Checkout, flags: list[str], reason: str
) -> None:
    result = checkout.run("serve.sh", *PORT, *flags)
    assert result.returncode == 1
    assert reason in result.stderr
    assert not checkout.home.exists(), "said before anything is prepared"


def test_serve_ends_when_the_model_cannot_be_fetched(checkout: Checkout) -> None:
    result = checkout.run("serve.sh", *PORT, FAKE_FETCH_FAILS="3")
    assert result.returncode == 3
    assert result.stdout == ""


def test_serve_lets_flags_override_its_defaults(checkout: Checkout) -> None:
    arguments = served(checkout, "--speculative-ddtree-budget", "63", *PORT)
    assert value(arguments, "--served-model-name") == "smollm2"
    assert value(arguments, "--speculative-ddtree-budget") == "63"
    assert "--no-speculative-ddtree-spine" not in arguments, "it belongs to the default budget"


@pytest.mark.parametrize("model", [["--model-path", "m"], ["--model-path=m"], ["--config", "c"]])
def test_serve_passes_another_model_through_untouched(checkout: Checkout, model: list[str]) -> None:
    assert served(checkout, *model, *PORT) == [*model, *PORT]


def test_serve_chooses_ddtree_for_a_pair(checkout: Checkout) -> None:
    pair = ["--model-path", "m", "--speculative-draft-model-path", "d", *PORT]
    assert served(checkout, *pair) == ["--speculative-algorithm", "DDTREE", *pair]
    named = [*pair, "--speculative-algorithm=DFLASH"]
    assert served(checkout, *named) == named


def test_serve_help_prepares_nothing(checkout: Checkout) -> None:
    result = checkout.run("serve.sh", "--help")
    assert result.returncode == 0
    assert "usage: scripts/serve.sh" in result.stdout
    assert not checkout.home.exists()


def read_until(last: str, stream: IO[str]) -> list[str]:
    lines = []
    for line in stream:
        if line == last:
            return lines
        lines.append(line)
    pytest.fail(f"no {last!r} in {lines}")


def test_serve_says_when_it_is_ready_and_leaves_nothing_behind(checkout: Checkout) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    fake = {"FAKE_SERVER": FAKE_SERVER, "REAL_PYTHON": sys.executable}
    with checkout.start("serve.sh", "--port", port, **fake) as process:
        try:
            assert process.stdout
            before = read_until("asked 3\n", process.stdout)
            ready = read_until("Stop with Ctrl-C.\n", process.stdout)
            process.terminate()
            # The end of the output is only seen when no process is left to write to it.
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert before == ["asked 1\n", "asked 2\n"]
    assert f"smollm2 is ready on http://127.0.0.1:{port}. Try:\n" in "".join(ready)
    assert process.returncode == -signal.SIGTERM


def test_serve_ends_when_the_server_dies_before_it_is_ready(checkout: Checkout) -> None:
    fake = {"FAKE_SERVER": "raise SystemExit(3)", "REAL_PYTHON": sys.executable}
    result = checkout.run("serve.sh", *PORT, **fake)
    assert result.returncode == 3
    assert result.stdout == ""


def test_serve_refuses_a_port_in_use(checkout: Checkout) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = checkout.run("serve.sh", f"--port={port}")
    assert result.returncode == 1
    assert f"already listens on 127.0.0.1:{port}" in result.stderr
