"""What a server reports of its draft is the tree, also of one that is narrower than a block."""

from __future__ import annotations

from typing import Any

import pytest
from common.server import Server

from server.client import metric
from waiting import wait_until

NODES = {"narrow": 2, "wide": 64}


@pytest.mark.parametrize("tree", NODES, indirect=True)
def test_all_report_the_tree(tree: Server, prompts: list[str], request: Any) -> None:
    nodes = NODES[request.node.callspec.params["tree"]]
    answers = tree.generate_all(prompts, concurrency=4, max_new_tokens=96, ignore_eos=True)
    for answer in answers:
        meta = answer["meta_info"]
        assert meta["spec_num_proposed_drafts"] == (nodes - 1) * meta["spec_verify_ct"]
        rate = meta["spec_num_correct_drafts"] / meta["spec_num_proposed_drafts"]
        assert meta["spec_accept_rate"] == pytest.approx(rate)
    info = tree.info()
    (state,) = info["internal_states"]
    assert info["speculative_num_draft_tokens"] == state["speculative_num_draft_tokens"] == nodes
    assert wait_until(lambda: metric(tree, "sglang:spec_num_draft_tokens") == nodes)
    length, rate = (metric(tree, f"sglang:spec_accept_{name}") for name in ("length", "rate"))
    assert length > 1
    assert rate * (nodes - 1) == pytest.approx(length - 1)
