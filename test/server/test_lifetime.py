"""A real server ends with whatever started it, at every moment of its life."""

from __future__ import annotations

import signal

from driven import Driven
from server.configurations import PAIR
from waiting import wait_until

START_S = 300
IMPORT_S = 240


def test_killed_while_sglang_imports() -> None:
    """Its processes have not asked yet to be killed with their parent."""
    with Driven(str(PAIR.target)) as driven:

        def both_import() -> bool:
            titles = driven.titles()
            assert not any(title.startswith("sglang::") for title in titles)
            return sum("spawn_main" in title for title in titles) >= 2

        assert wait_until(both_import, START_S)
        driven.end(signal.SIGKILL)
        assert driven.all_gone(IMPORT_S), driven.titles()


def test_killed_when_it_serves() -> None:
    with Driven(str(PAIR.target)) as driven:
        driven.wait_until_ready()
        titles = driven.titles()
        for name in ("sglang::scheduler", "sglang::detokenizer"):
            assert any(title.startswith(name) for title in titles), titles
        driven.end(signal.SIGKILL)
        assert driven.all_gone(), driven.titles()
