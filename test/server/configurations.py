"""The server configurations under test."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from common import plugins
from common.pairs import Pair
from common.server import Server, tree_flags

from server import step_probe

PAIR = Pair("tiny-dense")
# Short, so that tests reach it, and no multiple of a block or a page.
CONTEXT_LENGTH = 500
COMMON = ("--context-length", str(CONTEXT_LENGTH), "--random-seed", "7")
# SGLang accounts for every KV slot after each batch and when it is idle, and stops on a leak.
STRICT = {
    "OMP_NUM_THREADS": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
}
# A request's seed is honoured by a deterministic server only.
SEEDED = ("--enable-deterministic-inference",)
PAGED = ("--page-size", "16")


@dataclass(frozen=True)
class Configuration:
    """Flags and environment of one server."""

    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def _tree(budget: int, *flags: str, spine: bool = True, **env: str) -> Configuration:
    return Configuration((*tree_flags(PAIR, budget, spine=spine), *flags), env)


PLAIN = "plain"
# In the order in which tests use them.
CONFIGURATIONS = {
    PLAIN: Configuration(SEEDED),
    # Narrower than the drafter's block: verified as a chain, without a mask. Its switches for
    # hidden states and logit processors let such requests get as far as DDTREE.
    "narrow": _tree(
        1,
        *(*SEEDED, "--enable-metrics", "--enable-custom-logit-processor"),
        *("--return-hidden-states-mode", "full"),
    ),
    # As wide as the block, but best-first from the root on.
    "square": _tree(15, spine=False),
    # Much wider than the block, on pages.
    "wide": _tree(63, *PAGED, "--enable-metrics"),
    # Prompts come in chunks, a few requests fill the KV pool, and more than fit are let in.
    "cramped": _tree(
        31,
        *(*PAGED, *SEEDED, "--chunked-prefill-size", "64"),
        *("--max-total-tokens", "1024", "--schedule-conservativeness", "0.3"),
    ),
    "sharded": _tree(31, "--tp-size", "2", SGLANG_CPU_OMP_THREADS_BIND="0|1"),
    # SGLang's own backend with a custom mask, in Triton's interpreter.
    "masked": _tree(31, "--attention-backend", "triton", TRITON_INTERPRET="1"),
}


class Servers:
    """Starts servers on demand; keeps the plain one and at most one other."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ddtree-servers-")
        self._running: dict[str, Server] = {}

    def __enter__(self) -> Servers:
        self._plugins = plugins.announce(Path(self._folder.name), "server.step_probe")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._running.values():
            server.stop()
        self._folder.cleanup()

    def get(self, name: str) -> Server:
        """The server of a configuration, started unless it runs."""
        if name not in self._running:
            for other in set(self._running) - {PLAIN, name}:
                self._running.pop(other).stop()
            self._running[name] = self._start(name)
        return self._running[name]

    def probe(self, name: str) -> step_probe.Probe:
        """What records the decode steps of a configuration's server, once armed."""
        return step_probe.Probe(Path(self._folder.name) / f"{name}.steps")

    def _start(self, name: str) -> Server:
        configuration = CONFIGURATIONS[name]
        env = {**STRICT, **configuration.env, **self.probe(name).env, **self._plugins}
        server = Server(PAIR.target, (*COMMON, *configuration.flags), env)
        return server.__enter__()
