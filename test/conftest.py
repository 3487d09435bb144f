"""Which tests may run beside each other in ``scripts/test.sh``.

Tests of one module, and all tests of the dense pair's servers, share what they start and run in
one worker.
"""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            shares_servers = "servers" in getattr(item, "fixturenames", ())
            group = "dense servers" if shares_servers else str(item.path.stem)
            item.add_marker(pytest.mark.xdist_group(group))
