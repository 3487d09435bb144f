"""Stands in for a server and its processes: ``python fake_tree.py PORT [never-healthy]``.

Like SGLang's, a child has the kernel kill it when its parent dies, and has a child of its own.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CHILD = "child"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(503 if "never-healthy" in sys.argv else 200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def spawn(levels: int) -> None:
    """A child, and below it others, all of which run when this returns."""
    command = [sys.executable, __file__, CHILD, str(levels)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()


def be_child(levels: int) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if levels > 1:
        spawn(levels - 1)
    print("runs", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    if sys.argv[1] == CHILD:
        be_child(int(sys.argv[2]))
    spawn(2)
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
