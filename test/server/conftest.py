"""Servers that the tests of this folder share.

A start takes longer than most tests, so each configuration is started once, on first use, and the
tests are ordered by configuration: at any time there are the plain server and one tree server.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Last: benchmark/kernels.py is not the package of tests.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmark"))

from common.server import Server

from server.configurations import CONFIGURATIONS, PAIR, Servers
from server.oracle import Oracle
from server.reference import ReferenceTarget


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stable order: tests without a tree server, then configuration by configuration."""
    order = {name: index for index, name in enumerate(CONFIGURATIONS)}

    def last_configuration(item: pytest.Item) -> int:
        names = [*getattr(item, "fixturenames", ())]
        if callspec := getattr(item, "callspec", None):
            names += [value for value in callspec.params.values() if isinstance(value, str)]
        return max((order[name] for name in names if name in order), default=-1)

    items.sort(key=last_configuration)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with Servers() as running:
        yield running


@pytest.fixture(scope="session")
def reference() -> ReferenceTarget:
    return ReferenceTarget(PAIR)


@pytest.fixture(scope="session")
def oracle(servers: Servers, reference: ReferenceTarget) -> Iterator[Oracle]:
    """Plain decoding of the same build."""
    oracle = Oracle(servers.get("plain"), reference)
    yield oracle
    assert oracle.excused <= 2  # near ties among tens of thousands of tokens


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """Held-out prompts: chats, modules and library files, 30 to 250 tokens each."""
    texts = [record["prompt"] for record in PAIR.prompts()]
    return [*texts[:3], texts[6], *texts[32:36], *texts[64:66]]


@pytest.fixture(scope="session")
def long_prompt() -> str:
    """The longest held-out prompt, of more than 250 tokens."""
    return max((record["prompt"] for record in PAIR.prompts()), key=len)


@pytest.fixture
def tree(servers: Servers, request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server of the configuration that is the test's parameter."""
    server = servers.get(request.param)
    yield server
    assert server.is_alive(), server.log()[-6000:]
