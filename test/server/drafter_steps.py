"""Steps of the drafter pipeline as users start them, each a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from sglang_ddtree import lifetime
from waiting import wait_until

SERVER_FLAGS = ("--dtype", "float32", "--max-total-tokens", "16384", "--mem-fraction-static", "0.2")
DEADLINE_S = 400


# A step whose process gets SIGTERM right after a sample was written: no request is under way then.
STOPPED = """
import os, signal, sys
from sglang_ddtree import cli
from sglang_ddtree.drafter.data import capture

write, left = capture.write_sample, int(sys.argv.pop(1))

def write_then_stop(*arguments):
    global left
    write(*arguments)
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGTERM)

capture.write_sample = write_then_stop
raise SystemExit(cli.main())
"""


def run(step: str, work: Path, *arguments: str) -> str:
    """What a step printed, once it has ended well."""
    status, output = _finish(["-m", "sglang_ddtree.cli"], step, work, *arguments)
    assert status == 0, output[-6000:]
    return output


def run_stopped(step: str, work: Path, samples: int, *arguments: str) -> None:
    """A step that is sent SIGTERM, it alone, after it wrote so many samples: all its processes end
    with it."""
    status, output = _finish(["-c", STOPPED, str(samples)], step, work, *arguments)
    assert status == 128 + signal.SIGTERM, output[-6000:]


def _finish(program: list[str], step: str, work: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, *program, "drafter", step, "--work", str(work), *arguments]
    file = work.parent / f"{step}.log"
    with file.open("a") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lifetime.bound(),
        )
    status = process.wait(DEADLINE_S)
    assert wait_until(lambda: not lifetime.members(process.pid))
    return status, file.read_text()
