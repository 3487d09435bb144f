"""How a refusal ends a process: a command line's with status 2, ``Engine(...)`` with an error."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.no_server

SCRIPT = """
import sys
from types import SimpleNamespace
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import ServerArgs, prepare_server_args
from sglang.srt.entrypoints import engine
from sglang.srt.runtime_context import get_parallel
from sglang_ddtree.engine.startup import refusals as hooks
from sglang_ddtree.engine.config_error import DDTreeConfigError

SETTINGS = {"model_path": "none", "speculative_algorithm": "DDTREE"}
FLAGS = ["--model-path", "none", "--speculative-algorithm", "DDTREE"]

def raising(error):
    def original(*args):
        raise error
    return original

def outcome(call, *args):
    try:
        result = call(*args)
    except SystemExit as stop:
        return f"exit {stop.code}"
    except Exception as error:
        result = error
    return f"{type(result).__name__} {result}"

def ended(exitcode):
    return SimpleNamespace(join=lambda timeout: None, exitcode=exitcode)

ours, theirs = DDTreeConfigError("our reason"), RuntimeError("a fault")
for record in (ServerArgs(**SETTINGS), prepare_server_args(FLAGS)):
    print(outcome(hooks.end_with_reasons, raising(ours), record))
    print(outcome(engine._scheduler_died_error, 0, ended(2)))
    print(outcome(engine._scheduler_died_error, 0, ended(-9))[:36])
    print(outcome(hooks.end_with_reasons, raising(theirs), record))
    print(outcome(hooks.end_with_reasons, raising(ValueError("from deeper")), record))
with get_parallel().override(tp_rank=0):
    hooks.end_scheduler(raising(theirs if "fault" in sys.argv else ours), None)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, timeout=300
    )


def test_a_refusal_ends_each_kind_of_process() -> None:
    ended = run()
    assert ended.returncode == 2, ended.stderr
    engine, command = ended.stdout.split("\n")[:5], ended.stdout.split("\n")[5:10]
    assert engine == [
        "DDTreeConfigError our reason",
        "DDTreeConfigError a scheduler can't serve this configuration; it printed the reasons",
        "RuntimeError Rank 0 scheduler died d",
        "RuntimeError a fault",
        "ValueError from deeper",
    ]
    assert command == ["exit 2", "exit 2", *engine[2:]]
    # Once for the command line, once by the scheduler.
    assert ended.stderr.count("our reason") == 2
    assert "Traceback" not in ended.stderr


def test_a_fault_keeps_its_traceback() -> None:
    ended = run("fault")
    assert ended.returncode == 1
    assert ended.stderr.rstrip().endswith("RuntimeError: a fault")
    assert "Traceback" in ended.stderr
