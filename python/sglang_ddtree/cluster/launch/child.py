"""A process that ends with this one, in a session of its own, with its output passed on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import TextIO

import psutil

from sglang_ddtree import lifetime

_SCHEDULER = "sglang::scheduler"  # then its ranks, such as _PP0_TP1
_TP_RANK = re.compile(r"_TP(\d+)")


class Child:
    """One started program and everything that it starts.

    It dies with this process (see ``lifetime.bound``). It leads a session, so that a Ctrl-C at the
    terminal reaches only this process and all its descendants can be found.

    Start it from the main thread.

    cores: which it may run on, all of this process's by default.
    """

    def __init__(
        self,
        name: str,
        argv: Iterable[str],
        environ: Mapping[str, str],
        cores: tuple[int, ...] = (),
        out: TextIO = sys.stdout,
    ) -> None:
        self.name = name
        self._bind = lifetime.bound()
        self._cores = cores
        self.last_line = ""
        self.process = subprocess.Popen(
            list(argv),
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=self._prepare,
        )
        self._pump = threading.Thread(target=self._pass_on, args=(out,), daemon=True)
        self._pump.start()

    def _prepare(self) -> None:
        """Runs between fork and exec."""
        self._bind()
        if self._cores:
            os.sched_setaffinity(0, self._cores)

    def _pass_on(self, out: TextIO) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.last_line = line.rstrip() or self.last_line
            out.write(f"[{self.name}] {line}")
            out.flush()

    @property
    def pid(self) -> int:
        """Process and session number."""
        return self.process.pid

    def is_running(self) -> bool:
        """Whether the program itself runs; what it started may outlive it."""
        return self.process.poll() is None

    def ending(self) -> str:
        """How the program ended, in words."""
        status = self.process.poll()
        if status is None:
            return "still runs"
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"exited with status {status}"

    def members(self) -> list[psutil.Process]:
        """All living processes of its session."""
        return lifetime.members(self.pid)

    def ranks(self) -> dict[int, psutil.Process]:
        """SGLang's tensor-parallel ranks on this machine, by the titles they give themselves."""
        found = {}
        for process in self.members():
            try:
                title = " ".join(process.cmdline())
            except psutil.NoSuchProcess:
                continue
            if title.startswith(_SCHEDULER):
                rank = _TP_RANK.search(title)
                found[int(rank[1]) if rank else 0] = process
        return dict(sorted(found.items()))

    def ask_to_end(self) -> None:
        """SIGTERM to the program alone: SGLang drains its requests and ends its own processes."""
        if self.is_running():
            self.process.terminate()

    def kill(self, timeout_s: float = 10) -> list[psutil.Process]:
        """SIGKILL everything in its session; returns what is left after `timeout_s`, normally
        nothing."""
        left = lifetime.kill(self.pid, timeout_s)
        self.process.poll()
        return left
