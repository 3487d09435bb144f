"""Stands in for an SGLang server or router: health, ranks under SGLang's titles, drain on SIGTERM.

    python fake_service.py PORT RANKS [OPTION...]

Options: ``never-healthy``; ``fails`` at once; ``stubborn``: deaf to SIGTERM; ``workers=N``: a
router that finds one more of N servers each time it is asked. Ranks don't watch their parent, so
that whoever leaves them behind is found out. ``GET /slow`` answers after a second.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RANK = """
import signal, sys
from setproctitle import setproctitle
signal.signal(signal.SIGTERM, signal.SIG_IGN)
setproctitle(f"sglang::scheduler_DP0_TP{sys.argv[1]}_EP0")
print("rank", sys.argv[1], flush=True)
while True:
    signal.pause()
"""


class Handler(BaseHTTPRequestHandler):
    asked = 0

    def do_GET(self) -> None:
        if self.path == "/workers":
            self.list_workers()
            return
        healthy = self.path != "/health" or "never-healthy" not in sys.argv
        if self.path == "/slow":
            time.sleep(1)  # the work
        self.send_response(200 if healthy else 503)
        self.end_headers()
        self.wfile.write(b"done")

    def list_workers(self) -> None:
        """One more of the servers is healthy each time."""
        (count,) = [int(text.split("=")[1]) for text in sys.argv if text.startswith("workers=")]
        workers = [{"is_healthy": i < Handler.asked} for i in range(count)]
        Handler.asked += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"workers": workers, "total": count}).encode())

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    port, ranks = int(sys.argv[1]), int(sys.argv[2])
    if "fails" in sys.argv:
        sys.exit("no such model")
    children = [
        subprocess.Popen([sys.executable, "-c", RANK, str(i)], stdout=subprocess.PIPE)
        for i in range(ranks)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = False

    def drain(*_: Any) -> None:
        print("draining", flush=True)
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in sys.argv else drain)
    print("cores", sorted(os.sched_getaffinity(0)), flush=True)
    server.serve_forever()
    server.server_close()  # waits for the requests that run
    for child in children:
        child.kill()


if __name__ == "__main__":
    main()
