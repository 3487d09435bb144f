"""The least pool in which one request of the tree can decode."""

from __future__ import annotations

import pytest

from sglang_ddtree.engine.options import TreeOptions
from sglang_ddtree.engine.startup.pool import least_tokens, pool_problems


@pytest.mark.parametrize(
    ("block", "budget", "page_size", "least"),
    [(16, 15, 1, 33), (16, 31, 1, 65), (16, 3, 1, 33), (16, 15, 16, 48), (4, 255, 64, 576)],
)
def test_two_windows_past_one_token_in_whole_pages(
    block: int, budget: int, page_size: int, least: int
) -> None:
    options = TreeOptions(block_size=block, budget=budget)
    assert least_tokens(options, page_size) == least
    assert pool_problems(options, least, page_size) == []
    (problem,) = pool_problems(options, least - 1, page_size)
    assert f"the KV pool of {least - 1} tokens can't hold one request, which takes {least}" in (
        problem
    )
    assert pool_problems(options, None, page_size) == []
