"""What a process starts ends with it, however it ends."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import pytest

from driven import Driven
from sglang_ddtree import lifetime
from waiting import wait_until

TREE = [sys.executable, str(Path(__file__).parents[1] / "fake_tree.py"), "PORT"]
SIGNALS = [
    (signal.SIGTERM, 143),
    (signal.SIGINT, -signal.SIGINT),
    (signal.SIGKILL, -signal.SIGKILL),
]


@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_a_server_ends_with_its_starter(number: int, status: int) -> None:
    with Driven("model", *TREE) as driven:
        driven.wait_until_ready()
        assert len(driven.members()) == 3
        assert driven.end(number) == status
        assert driven.all_gone(), driven.titles()


@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_a_server_that_is_starting_ends_too(number: int, status: int) -> None:
    with Driven("model", *TREE, "never-healthy") as driven:
        assert wait_until(lambda: len(driven.members()) == 3)
        assert driven.end(number) == status
        assert driven.all_gone(), driven.titles()


def test_only_the_main_thread_can_bind() -> None:
    """The kernel watches the thread."""
    refused = []

    def start() -> None:
        try:
            lifetime.bound()
        except RuntimeError as error:
            refused.append(str(error))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in refused[0]
