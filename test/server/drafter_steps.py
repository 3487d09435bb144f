"""Steps of the drafter pipeline as users start them, each a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from sglang_ddtree import lifetime
from waiting import wait_until

SERVER_FLAGS = ("--dtype", "float32", "--max-total-tokens", "16384", "--mem-fraction-static", "0.2")
DEADLINE_S = 400


def start(step: str, work: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sglang_ddtree.cli", "drafter", step, "--work", str(work)]
    log = (work.parent / f"{step}.log").open("a+")
    return subprocess.Popen(
        [*command, *arguments],
        stdout=log,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lifetime.bound(),
    )


def run(step: str, work: Path, *arguments: str) -> str:
    """What a step printed, once it has ended well."""
    process = start(step, work, *arguments)
    status = process.wait(DEADLINE_S)
    output = (work.parent / f"{step}.log").read_text()
    assert status == 0, output[-6000:]
    return output


def end_once(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """SIGTERM a step, it alone, as soon as the condition holds: all its processes end with it."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert process.poll() is None, "ended before it could be stopped"
        assert time.monotonic() < deadline
        time.sleep(0.01)  # between looks at the condition
    process.terminate()
    assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
    assert wait_until(lambda: not lifetime.members(process.pid))
