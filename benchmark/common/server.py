"""A real SGLang server on loopback, started for one purpose and always stopped.

It ends with the process that started it, however that one ends: by itself, by SIGINT, SIGTERM or
SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import requests

from common.pairs import Pair
from sglang_ddtree import lifetime

START_TIMEOUT_S = 300
STOP_TIMEOUT_S = 20
# Small pools: the machines this runs on have little memory.
BASE_FLAGS = ("--dtype", "float32", "--max-total-tokens", "32768", "--mem-fraction-static", "0.2")


class ServerError(RuntimeError):
    """The server did not start, or died; the message ends with its log."""


# Below the range that outgoing connections use: a server binds its port a minute later.
_PORTS = range(20000, 32768)
_given: set[int] = set()


def free_port() -> int:
    """A TCP port that nothing listens on, and that this process has not given out before."""
    for port in random.sample(_PORTS, len(_PORTS)):
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
    raise ServerError(f"no free TCP port from {_PORTS.start} to {_PORTS.stop - 1}")


def dflash_flags(pair: Pair) -> list[str]:
    """Command-line flags of a server with SGLang's own DFLASH over ``pair``."""
    drafter = ["--speculative-draft-model-path", str(pair.drafter)]
    return ["--speculative-algorithm", "DFLASH", *drafter]


def tree_flags(pair: Pair, budget: int, *, topk: int | None = None, spine: bool = True):
    """Command-line flags of a DDTREE server over ``pair``."""
    flags = ["--speculative-algorithm", "DDTREE"]
    flags += ["--speculative-draft-model-path", str(pair.drafter)]
    flags += ["--speculative-ddtree-budget", str(budget)]
    if topk is not None:
        flags += ["--speculative-ddtree-topk", str(topk)]
    return flags if spine else [*flags, "--no-speculative-ddtree-spine"]


class Server:
    """``python -m sglang.launch_server`` as a context manager.

    Args:
        model: target folder.
        flags: further command-line flags; they override :data:`BASE_FLAGS`.
        env: variables added to this process's environment.
    """

    def __init__(
        self, model: Path, flags: Sequence[str] = (), env: dict[str, str] | None = None
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model)]
        self.command += ["--host", "127.0.0.1", "--port", str(self.port), *BASE_FLAGS, *flags]
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        descriptor, path = tempfile.mkstemp(prefix="sglang-server-", suffix=".log")
        os.close(descriptor)
        self.log_file = Path(path)

    def __enter__(self) -> Server:
        lifetime.unwind_on_sigterm()
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
                preexec_fn=lifetime.bound(),
            )
        try:
            self._wait_until_healthy()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """End the server and every process it started."""
        if self._process is None:
            return
        try:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
        finally:
            lifetime.kill(self._process.pid)
            self._process.wait()
        self._process = None
        self.log_file.unlink(missing_ok=True)

    def log(self) -> str:
        """Everything the server has printed so far."""
        return self.log_file.read_text(errors="replace")

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def post(self, path: str, body: dict[str, Any], **options: Any) -> requests.Response:
        """POST JSON; the caller checks the status."""
        return requests.post(self.url + path, json=body, timeout=600, **options)

    def generate(
        self, text: str, *, request: dict[str, Any] | None = None, **sampling: Any
    ) -> dict[str, Any]:
        """``/generate`` one prompt, greedy unless ``sampling`` says otherwise.

        Args:
            request: further fields of the request, such as ``return_logprob``.

        Returns:
            SGLang's answer: ``text``, ``output_ids``, ``meta_info``.
        """
        params = {"temperature": 0, "max_new_tokens": 128, **sampling}
        body = {"text": text, "sampling_params": params, **(request or {})}
        answer = self.post("/generate", body)
        answer.raise_for_status()
        return answer.json()

    def generate_all(
        self, texts: Iterable[str], concurrency: int, **options: Any
    ) -> list[dict[str, Any]]:
        """``generate`` every prompt, at most ``concurrency`` at a time, answers in order."""
        with ThreadPoolExecutor(concurrency) as clients:
            return list(clients.map(lambda text: self.generate(text, **options), texts))

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a prompt, as ``generate`` would read it."""
        answer = self.post("/v1/tokenize", {"prompt": text})
        answer.raise_for_status()
        return answer.json()["tokens"]

    def flush_cache(self) -> None:
        """Empty the radix cache as soon as the server is idle."""
        answer = requests.post(self.url + "/flush_cache", params={"timeout": 30}, timeout=60)
        answer.raise_for_status()

    def info(self) -> dict[str, Any]:
        """``/server_info``."""
        answer = requests.get(self.url + "/server_info", timeout=60)
        answer.raise_for_status()
        return answer.json()

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if not self.is_alive():
                raise ServerError(f"the server ended at start-up:\n{self.log()[-6000:]}")
            with contextlib.suppress(requests.RequestException):
                if requests.get(self.url + "/health", timeout=10).status_code == 200:
                    return
            time.sleep(0.25)  # between polls of the condition above
        raise ServerError(f"no answer after {START_TIMEOUT_S} s:\n{self.log()[-6000:]}")
