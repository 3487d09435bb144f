"""A process that ends with this one, in a session of its own, with its output passed on."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TextIO

import psutil

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_SCHEDULER = "sglang::scheduler"  # then its ranks, such as _PP0_TP1
_TP_RANK = re.compile(r"_TP(\d+)")


class Child:
    """One started program and everything that it starts.

    The kernel kills it when this process dies, whatever kills that; SGLang's own processes then
    end with it (srt/utils/common.py: kill_itself_when_parent_died@0.5.23). It leads a session, so
    that a Ctrl-C at the terminal reaches only this process and all its descendants can be found.

    Start it from the main thread: the kernel watches the thread that forks.

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
        self._parent = os.getpid()
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
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._parent:
            os._exit(1)  # it died before it could be watched
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
        found = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue  # ended while looking
        return found

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
        deadline = time.monotonic() + timeout_s
        while True:
            left = self.members()
            for process in left:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            self.process.poll()
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.05)  # until the kernel has taken them down
