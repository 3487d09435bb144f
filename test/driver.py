"""Starts a server as the benchmarks do, then waits: ``python driver.py MODEL [COMMAND...]``.

Prints the server's process and session number as soon as it has one, and ``ready`` when it is
healthy. A command takes the place of SGLang's; its ``PORT`` is the server's port.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmark"))

from common.server import Server


def tell(server: Server) -> None:
    while server._process is None:
        time.sleep(0.01)  # between looks
    print(server.pid, flush=True)


def main() -> None:
    server = Server(Path(sys.argv[1]))
    if command := sys.argv[2:]:
        server.command = [text.replace("PORT", str(server.port)) for text in command]
    threading.Thread(target=tell, args=(server,), daemon=True).start()
    with server:
        print("ready", flush=True)
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
