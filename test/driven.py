"""A process that starts a server, which a test then ends by a signal."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from sglang_ddtree import lifetime
from waiting import wait_until

DRIVER = Path(__file__).with_name("driver.py")


class Driven:
    """A driver and the server that it starts, by whatever command.

    Attributes:
        session: of the server.
    """

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(DRIVER), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lifetime.bound(),
        )
        assert self.process.stdout is not None
        self.session = int(self.process.stdout.readline())

    def __enter__(self) -> Driven:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        lifetime.kill(self.session)

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def members(self) -> list[psutil.Process]:
        return lifetime.members(self.session)

    def titles(self) -> list[str]:
        """What the server's processes are called."""
        found = []
        for process in self.members():
            with suppress(psutil.NoSuchProcess):
                found.append(" ".join(process.cmdline()))
        return found

    def end(self, number: int) -> int:
        """Send a signal to the driver alone; its status."""
        self.process.send_signal(number)
        return self.process.wait(60)

    def all_gone(self, timeout_s: float = 60) -> bool:
        return wait_until(lambda: not self.members(), timeout_s)
