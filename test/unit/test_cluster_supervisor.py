"""A launched service ends as a whole, says why, and leaves no process behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from waiting import wait_until

HERE = Path(__file__).parent
DRIVER = """
import sys
from sglang_ddtree.cluster.launch.environment import Command
from sglang_ddtree.cluster.launch.service import ServerSpec, Service
from sglang_ddtree.cluster.launch.supervisor import Supervisor

script, timeout, *servers = sys.argv[1:]
specs, router = [], None
for i, text in enumerate(servers):
    port, *rest = text.split()
    command = Command(("python", script, port, *rest))
    if rest[0] == "0":
        router, url = command, f"http://127.0.0.1:{port}"
    else:
        url = f"http://127.0.0.1:{port}"
        specs.append(ServerSpec(f"replica {i}", "here", command, url, ((0,),) * int(rest[0])))
sys.exit(Supervisor(Service(tuple(specs), router, url), float(timeout)).run())
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Run:
    """A supervisor in a process of its own, over fake servers."""

    def __init__(self, folder: Path, *servers: str, timeout_s: float = 60) -> None:
        self.ports = free_ports(len(servers))
        self.log = folder / "log"
        texts = [f"{port} {server}" for port, server in zip(self.ports, servers, strict=True)]
        script = str(HERE / "fake_service.py")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", DRIVER, script, str(timeout_s), *texts],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def output(self) -> str:
        return self.log.read_text()

    def wait_until_ready(self) -> None:
        assert wait_until(lambda: "ready on" in self.output()), self.output()

    def family(self) -> list[psutil.Process]:
        """Everything below the supervisor."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def rank(self, number: int) -> psutil.Process:
        title = f"sglang::scheduler_DP0_TP{number}_EP0"
        return next(p for p in self.family() if p.cmdline()[:1] == [title])

    def end(self) -> int:
        return self.process.wait(30)

    def kill(self) -> None:
        """End what still runs, the fake ranks too, which outlive a killed launcher."""
        family = self.family() if self.process.poll() is None else []
        self.process.kill()
        self.process.wait()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def run(*servers: str, **options: float) -> Run:
        runs.append(Run(tmp_path, *servers, **options))
        return runs[-1]

    yield run
    for one in runs:
        one.kill()


def left(family: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_a_dead_rank_ends_everything_with_one_message(start: Callable[..., Run]) -> None:
    run = start("2", "2", "0 workers=2")
    run.wait_until_ready()
    family = run.family()
    assert len(family) == 3 + 4
    victim = run.rank(1)
    victim.kill()
    began = time.monotonic()
    assert run.end() == 1
    assert time.monotonic() - began < 15
    assert not left(family)
    messages = [line for line in run.output().splitlines() if "stopping everything" in line]
    assert len(messages) == 1
    assert re.search(rf"replica \d: rank 1 \(process {victim.pid}\) died; stopping", messages[0])


def test_a_dead_server_or_router_is_named(start: Callable[..., Run]) -> None:
    for which, name in ((0, "replica 0"), (1, "router")):
        run = start("1", "0 workers=1")
        run.wait_until_ready()
        family = run.family()
        port = str(run.ports[which])
        next(p for p in family if port in p.cmdline()).kill()
        assert run.end() == 1
        assert not left(family)
        assert re.search(rf"{name} \(process \d+\) was ended by SIGKILL; stopping", run.output())


def test_sigterm_finishes_what_runs(start: Callable[..., Run]) -> None:
    run = start("2", "0 workers=1")
    run.wait_until_ready()
    family = run.family()
    with ThreadPoolExecutor(1) as client:
        url = f"http://127.0.0.1:{run.ports[0]}/slow"
        answer = client.submit(lambda: urllib.request.urlopen(url, timeout=20).read())
        time.sleep(0.3)  # the request is under way
        run.process.send_signal(signal.SIGTERM)
        assert answer.result() == b"done"
    assert run.end() == 0
    assert not left(family)
    assert run.output().count("draining") == 2
    assert "SIGTERM, finishing running requests" in run.output()


def test_a_second_signal_ends_at_once(start: Callable[..., Run]) -> None:
    run = start("1 stubborn")
    run.wait_until_ready()
    family = run.family()
    run.process.send_signal(signal.SIGINT)
    assert wait_until(lambda: "finishing running requests" in run.output())
    assert left(family)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 0
    assert not left(family)


def test_servers_die_with_a_killed_launcher(start: Callable[..., Run]) -> None:
    """Nothing can be cleaned up then, so the kernel ends each server; SGLang's ranks follow their
    server by themselves, the fake ones stay and are ended here."""
    run = start("1")
    run.wait_until_ready()
    server, *ranks = run.family()
    run.process.kill()
    assert wait_until(lambda: not left([server]))
    for rank in ranks:
        rank.kill()


def test_a_server_that_fails_at_start(start: Callable[..., Run]) -> None:
    run = start("1", "1 fails")
    assert run.end() == 1
    assert "[replica 1] no such model" in run.output()
    assert re.search(r"replica 1 .* exited with status 1 before the service was", run.output())


def test_a_server_that_never_answers(start: Callable[..., Run]) -> None:
    run = start("1 never-healthy", timeout_s=2)
    assert run.end() == 1
    assert "replica 0 gave no answer for 2 s; stopping everything" in run.output()


def test_binding_is_read_back(start: Callable[..., Run]) -> None:
    run = start("1")
    run.wait_until_ready()
    first = min(os.sched_getaffinity(0))
    assert "[replica 0] cores [0]" in run.output()
    assert re.search(rf"replica 0 rank 0: process \d+, cores {first}\n", run.output())
