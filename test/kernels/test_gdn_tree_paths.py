"""What the kernels of recurrent layers ask of their buffers."""

from __future__ import annotations

import pytest
import torch

from sglang_ddtree.ops.gdn_tree.paths import TreePaths, check_stash
from sglang_ddtree.ops.gdn_tree.stash import RecurrentShape, Stash

SHAPE = RecurrentShape(k_heads=1, v_heads=2, k_dim=16, v_dim=16)


def stash(layers: int, requests: int, nodes: int) -> Stash:
    leading = (layers, requests, nodes)
    return Stash.allocate(SHAPE, leading, dtype=torch.float32, device="meta")


def paths(requests: int, nodes: int) -> TreePaths:
    parent = torch.zeros(requests, nodes, dtype=torch.int32)
    return TreePaths(parent, torch.zeros(requests, nodes, 1, dtype=torch.int64))


def test_a_stash_may_hold_more_requests_than_run() -> None:
    check_stash(stash(3, 5, 8), 3, paths(2, 8))


@pytest.mark.parametrize(("layers", "requests", "nodes"), [(2, 5, 8), (3, 1, 8), (3, 5, 7)])
def test_a_stash_that_does_not_fit_is_refused(layers: int, requests: int, nodes: int) -> None:
    with pytest.raises(ValueError, match="does not hold 3 layers of 2 requests of 8 nodes"):
        check_stash(stash(layers, requests, nodes), 3, paths(2, 8))
