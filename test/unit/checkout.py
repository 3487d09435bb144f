"""A checkout to run the shell scripts in, with a stand-in Python that records what it is asked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# As python3.11 outside an environment: makes one holding a copy of itself. As an environment's
# python: prints its arguments, except for pip and setup.py.
FAKE_PYTHON = r"""#!/bin/bash
echo "$*" >>"$FAKE_LOG"
case "$*" in
    "-c import sys; sys.exit"*) exit "${FAKE_WRONG_VERSION:-0}" ;;
    "-c import ensurepip, venv") exit "${FAKE_NO_VENV:-0}" ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip install "*)
        if [[ -n ${FAKE_PIP_WAITS:-} ]]; then read -r <"$FAKE_PIP_WAITS"; fi
        exit "${FAKE_PIP_FAILS:-0}"
        ;;
    "setup.py --quiet egg_info")
        mkdir -p python/sglang_ddtree.egg-info && : >python/sglang_ddtree.egg-info/SOURCES.txt
        ;;
    "-m sglang_ddtree.drafter.smollm2")
        echo "$SGLANG_DDTREE_HOME/SmolLM2"
        exit "${FAKE_FETCH_FAILS:-0}"
        ;;
    "-m sglang.launch_server"*)
        if [[ -n ${FAKE_SERVER:-} ]]; then exec "$REAL_PYTHON" -c "$FAKE_SERVER" "${@: -1}"; fi
        printf '%s\n' "$@"
        ;;
esac
"""


# All that the scripts may use beside Python.
TOOLS = [
    "awk",
    "bash",
    "cat",
    "chmod",
    "cp",
    "df",
    "dirname",
    "flock",
    "grep",
    "mkdir",
    "rm",
    "sha256sum",
]

# Stands in for SGLang on the port that is its last argument: unhealthy until asked three times.
FAKE_SERVER = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0

    def do_GET(self):
        Handler.asked += self.path == "/health"
        self.send_response(200 if Handler.asked >= 3 else 503)
        self.end_headers()

    def log_message(self, *_):
        print(f"asked {Handler.asked}", flush=True)

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Checkout:
    """A copy of the scripts and requirements, with a PATH of its own and no GPU."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.home = folder / "home"
        self.bin = folder / "bin"
        self.log = folder / "log"
        for name in ("scripts", "requirements"):
            shutil.copytree(ROOT / name, self.root / name)
        package = self.root / "python" / "sglang_ddtree"
        package.mkdir(parents=True)
        shutil.copy(ROOT / "python" / "sglang_ddtree" / "__init__.py", package)
        shutil.copy(ROOT / "setup.py", self.root)
        for pair in ("smollm2", "tiny-dense", "tiny-mla"):
            Path(self.drafter(pair)).mkdir(parents=True)
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or pytest.fail(f"no {tool}"))
        self.add_tool("python3.11", FAKE_PYTHON)
        self.environ = {
            "PATH": str(self.bin),
            "HOME": str(folder),
            "FAKE_LOG": str(self.log),
            "SGLANG_DDTREE_HOME": str(self.home),
        }

    def drafter(self, pair: str) -> str:
        """Where a bundled pair's drafter lies; the folder is empty."""
        return f"{self.root}/pairs/{pair}/drafter"

    def add_tool(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def start(self, script: str, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.root / "scripts" / script), *arguments],
            env=self.environ | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        with self.start(script, *arguments, **environ) as process:
            try:
                out, err = process.communicate(timeout=60)
            finally:
                process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def calls(self, start: str) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.startswith(start)]
