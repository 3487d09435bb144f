"""Runs a service: starts it in order, waits for health, and ends all of it when a part ends."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType

import psutil

from sglang_ddtree.cluster.launch.child import Child
from sglang_ddtree.cluster.launch.environment import Command
from sglang_ddtree.cluster.launch.service import ServerSpec, Service
from sglang_ddtree.cluster.machine.cores import format_cores

POLL_S = 0.2
PROGRESS_S = 10.0
PROGRESS_WIDTH = 120
# After a failure the rest gets this long to end by itself.
GRACE_S = 10.0


class ServiceEnded(Exception):
    """A part of the service ended or never came up; the message says which and how."""


class _Stop(Exception):
    """The user asked for the end."""


@dataclass
class Supervisor:
    """One run of a service.

    start_timeout_s: for all servers to answer. drain_timeout_s: for running requests to finish
    after SIGTERM or SIGINT; a second signal ends everything at once.
    """

    service: Service
    start_timeout_s: float = 1800.0
    drain_timeout_s: float = 300.0
    say: Callable[[str], None] = field(default=lambda text: print(text, flush=True))
    _children: list[Child] = field(default_factory=list)
    _ranks: dict[str, dict[int, psutil.Process]] = field(default_factory=dict)
    _signals: list[int] = field(default_factory=list)
    _ready: bool = False

    def run(self) -> int:
        """Serve until told to stop (returns 0) or until a part ends (returns 1).

        Whatever happens, no process of the service is left.
        """
        with self._listening_to_signals():
            try:
                self._start()
                self._watch()
            except _Stop:
                self._drain()
                return 0
            except ServiceEnded as end:
                self.say(f"sglang-ddtree launch: {end}; stopping everything")
                self._stop_rest()
                return 1
            finally:
                self._kill_all()
        raise AssertionError("the watch ends by an exception only")

    def _start(self) -> None:
        for spec in self.service.servers:
            self.say(f"sglang-ddtree launch: starting {spec.name} ({spec.place}) on {spec.url}")
            self._children.append(_start_child(spec.name, spec.command, spec.cores))
        for spec, child in zip(self.service.servers, self._children, strict=True):
            self._wait_until(child, partial(_answers, spec.url + "/health"))
            self._ranks[child.name] = child.ranks()
            self._report_binding(spec, child)
        if self.service.router is not None:
            self.say(f"sglang-ddtree launch: starting the router on {self.service.url}")
            router = _start_child("router", self.service.router, ())
            self._children.append(router)
            url, servers = self.service.url, len(self.service.servers)
            # It is healthy on its own, and answers 503 as long as it knows no server.
            self._wait_until(router, lambda: _routes_to(url) == servers)
        self._ready = True
        self.say(f"sglang-ddtree launch: ready on {self.service.url}")

    def _wait_until(self, child: Child, is_ready: Callable[[], bool]) -> None:
        began = last = time.monotonic()
        while not is_ready():
            self._check()
            now = time.monotonic()
            if now - began > self.start_timeout_s:
                raise ServiceEnded(f"{child.name} gave no answer for {self.start_timeout_s:.0f} s")
            if now - last > PROGRESS_S:
                last = now
                latest = child.last_line[:PROGRESS_WIDTH] or "no output yet"
                self.say(
                    f"sglang-ddtree launch: {child.name} starts for {now - began:.0f} s: {latest}"
                )
            time.sleep(POLL_S)  # between polls of the condition

    def _report_binding(self, spec: ServerSpec, child: Child) -> None:
        """What the operating system says about each rank's cores, against the plan."""
        for rank, process in self._ranks[child.name].items():
            cores = tuple(process.cpu_affinity())
            planned = spec.ranks[rank] if rank < len(spec.ranks) else ()
            usable = tuple(core for core in planned if core in os.sched_getaffinity(0))
            text = f"{spec.name} rank {rank}: process {process.pid}, cores {format_cores(cores)}"
            if planned and set(cores) != set(usable):
                text += (
                    f", not bound to the planned {format_cores(planned)}: see the server's output "
                    "(SGLang binds with libnuma, which must be installed)"
                )
            self.say(f"sglang-ddtree launch: {text}")

    def _watch(self) -> None:
        while True:
            self._check()
            time.sleep(POLL_S)  # between looks at the processes

    def _check(self) -> None:
        """Raises _Stop after a signal, ServiceEnded where a process is gone."""
        if self._signals:
            raise _Stop
        for child in self._children:
            for rank, process in self._ranks.get(child.name, {}).items():
                if not _is_alive(process):
                    raise ServiceEnded(f"{child.name}: rank {rank} (process {process.pid}) died")
            if not child.is_running():
                message = f"{child.name} (process {child.pid}) {child.ending()}"
                if not self._ready:
                    message += " before the service was ready, for the reason in its output above"
                raise ServiceEnded(message)

    def _drain(self) -> None:
        """Router first, so that no request arrives any more, then the servers."""
        name = signal.Signals(self._signals[0]).name
        self.say(f"sglang-ddtree launch: {name}, finishing running requests (again: end at once)")
        deadline = time.monotonic() + self.drain_timeout_s
        for children in ([c for c in self._children if c.name == "router"], self._children):
            for child in children:
                child.ask_to_end()
            while any(child.is_running() for child in children):
                if len(self._signals) > 1 or time.monotonic() > deadline:
                    self.say("sglang-ddtree launch: ending at once")
                    return
                time.sleep(POLL_S)  # between looks at the processes

    def _stop_rest(self) -> None:
        """End what depends on the part that died, which has nothing left to finish."""
        for child in self._children:
            if not child.is_running() or self._has_dead_rank(child):
                child.kill()
            else:
                child.ask_to_end()
        deadline = time.monotonic() + GRACE_S
        while any(child.is_running() for child in self._children) and time.monotonic() < deadline:
            time.sleep(POLL_S)  # between looks at the processes

    def _has_dead_rank(self, child: Child) -> bool:
        return not all(map(_is_alive, self._ranks.get(child.name, {}).values()))

    def _kill_all(self) -> None:
        left = [process for child in self._children for process in child.kill()]
        if left:
            pids = ", ".join(str(process.pid) for process in left)
            self.say(f"sglang-ddtree launch: processes that SIGKILL did not end: {pids}")

    @contextmanager
    def _listening_to_signals(self) -> Iterator[None]:
        def note(number: int, frame: FrameType | None) -> None:
            self._signals.append(number)

        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        before = [(number, signal.signal(number, note)) for number in numbers]
        try:
            yield
        finally:
            for number, handler in before:
                signal.signal(number, handler)


def _start_child(name: str, command: Command, cores: tuple[int, ...]) -> Child:
    environ = dict(os.environ)
    for setting in command.settings:
        environ.pop(setting.name, None)
        if setting.value is not None:
            environ[setting.name] = setting.value
    # Line by line through the pipe, as on a terminal.
    environ["PYTHONUNBUFFERED"] = "1"
    usable = tuple(core for core in cores if core in os.sched_getaffinity(0))
    # A plan says "python" for people; the one that runs this is the one with SGLang in it.
    return Child(name, (sys.executable, *command.argv[1:]), environ, usable)


# Whatever proxy the environment names is not for this machine's own ports.
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _answers(url: str) -> bool:
    try:
        with _HTTP.open(url, timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _routes_to(url: str) -> int:
    """How many healthy servers SGLang's router knows."""
    try:
        with _HTTP.open(url + "/workers", timeout=5) as answer:
            return sum(worker["is_healthy"] for worker in json.load(answer)["workers"])
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return 0


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
