"""Runs ``sglang.launch_server`` for many command lines, up to where a server would start.

Reads a JSON list of cases from standard input, each with ``flags`` and, where another SGLang is to
be pretended, ``sglang_version``; writes a JSON list of ``status`` (of the process) and ``output``.
Importing SGLang and loading plugins takes longer than all that follows, so it is done once and each
case is a fork; of a process without plugins where another SGLang is pretended, for they look at it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import tempfile
import traceback
from typing import Any, NoReturn

import sglang.srt.entrypoints.http_server
from sglang.launch_server import load_plugins, prepare_server_args, run_server

STARTED = "SERVER STARTED"


def pretend_version(version: str) -> None:
    real = importlib.metadata.version

    def pretended(package: str) -> str:
        return version if package == "sglang" else real(package)

    importlib.metadata.version = pretended


def start_nothing(server_args: Any, **_: Any) -> None:
    print(STARTED)


def launch(case: dict[str, Any]) -> None:
    """What ``python -m sglang.launch_server FLAGS`` does."""
    if "sglang_version" in case:
        pretend_version(case["sglang_version"])
    sglang.srt.entrypoints.http_server.launch_server = start_nothing
    load_plugins()
    run_server(prepare_server_args(case["flags"]))


def run_as_process(case: dict[str, Any], output: int) -> NoReturn:
    """Never returns to the caller's stack: this is the child of a fork."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    status = 1
    try:
        launch(case)
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def outcome(case: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            run_as_process(case, output.fileno())
        _, status = os.waitpid(pid, 0)
        output.seek(0)
        text = output.read().decode(errors="replace")
    return {"status": os.waitstatus_to_exitcode(status), "output": text}


def outcomes(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    pretended = {i: outcome(case) for i, case in enumerate(cases) if "sglang_version" in case}
    load_plugins()
    return [pretended.get(i) or outcome(case) for i, case in enumerate(cases)]


if __name__ == "__main__":
    json.dump(outcomes(json.load(sys.stdin)), sys.stdout)
