"""Started programs that don't outlive the process that started them, whatever ends that one."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

import psutil

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def bound() -> Callable[[], None]:
    """A ``preexec_fn`` of ``subprocess.Popen``: the kernel kills the program when this process
    dies, whatever kills that.

    SGLang's own processes then end with it (srt/utils/common.py:3432@0.5.23 and
    ``engine/startup/orphans.py``).

    Raises:
        RuntimeError: this is not the main thread. The kernel watches the thread that forks, so the
            program would end with the thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("start it from the main thread: it would end with any other one")
    parent = os.getpid()

    def prepare() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it died before it could be watched

    return prepare


def unwind_on_sigterm() -> None:
    """From now on SIGTERM leaves this process by ``SystemExit``, so that what is open is closed.

    Only the first one: a second ends it at once. Nothing is changed outside of the main thread, or
    where something else handles SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, leave)


def leave(number: int, frame: FrameType | None) -> None:
    """Handles a signal by ``SystemExit`` with the status that a shell gives it, once."""
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(128 + number)


def members(session: int) -> list[psutil.Process]:
    """All living processes of a session."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue  # ended while looking
    return found


def kill(session: int, timeout_s: float = 10) -> list[psutil.Process]:
    """SIGKILL everything in a session; returns what is left after `timeout_s`, normally nothing."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = members(session)
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)  # until the kernel has taken them down
