"""How tests end, and how they divide into the two lanes of ``scripts/test.sh``."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

SERVER_TESTS = Path(__file__).parent / "server"


def pytest_configure() -> None:
    """SIGTERM stops the tests as Ctrl-C does: fixtures end what they have started."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts servers of its own: all of test/server but tests of the shared ones and
    what starts none."""
    for item in items:
        shares = "servers" in getattr(item, "fixturenames", ())
        starts = item.path.is_relative_to(SERVER_TESTS) and not item.get_closest_marker("no_server")
        if starts and not shares:
            item.add_marker(pytest.mark.own_servers)
