"""Absorbed latent attention over a tree, against multi-head attention with up-projected keys."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels.tree_cases import Paged, make_tree, paged_case
from sglang_ddtree.ops.tree_attention import (
    latent_tree_attention,
    latent_tree_attention_sdpa,
    tree_attention,
)
from sglang_ddtree.tree import DraftTree


@dataclass(frozen=True, eq=False)
class Projections:
    """Up-projections of one layer, per head: ``k_up`` [H, nope, rank], ``v_up`` [H, dv, rank]."""

    k_up: Tensor
    v_up: Tensor

    @classmethod
    def random(cls, heads: int, rank: int, nope: int = 24, v_dim: int = 20) -> Projections:
        generator = torch.Generator().manual_seed(heads)
        shapes = ((heads, nope, rank), (heads, v_dim, rank))
        drawn = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
        return cls(*(weight / rank**0.5 for weight in drawn))

    def absorb(self, q_nope: Tensor, q_rope: Tensor) -> Tensor:
        latent = torch.einsum("bnhd,hdr->bnhr", q_nope, self.k_up)
        return torch.cat([latent, q_rope], dim=-1)


def dense_mask(tree: DraftTree, request: int, prefix_len: int, window: int) -> Tensor:
    """bool [N, prefix + N]: by walking up from every node, at the positions of the definition."""
    nodes = tree.width
    depth, parent = tree.depth[request].tolist(), tree.parent[request].tolist()
    position = [*range(prefix_len), *(prefix_len + d for d in depth)]
    mask = torch.zeros(nodes, prefix_len + nodes, dtype=torch.bool)
    for node in range(nodes):
        mask[node, :prefix_len] = True
        walker = node
        while walker >= 0:
            mask[node, prefix_len + walker] = True
            walker = parent[walker]
    if window >= 0:
        distance = torch.tensor(position[prefix_len:])[:, None] - torch.tensor(position)
        mask &= distance <= window
    return mask


def unabsorbed(
    weights: Projections, q: Tensor, q_rope: Tensor, rows: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Multi-head attention of one request: q [N, H, nope], rows [S, rank + rope].

    Returns [N, H, dv] and the log-sum-exp [N, H].
    """
    rank = weights.k_up.shape[2]
    keys = torch.einsum("sr,hdr->hsd", rows[:, :rank], weights.k_up)
    shared = rows[:, rank:].expand(len(keys), -1, -1)
    keys = torch.cat([keys, shared], dim=-1)
    values = torch.einsum("sr,hdr->hsd", rows[:, :rank], weights.v_up)
    queries = torch.cat([q, q_rope], dim=-1).transpose(0, 1)
    scores = (queries @ keys.transpose(1, 2) * scale).masked_fill(~mask, float("-inf"))
    out = scores.softmax(-1) @ values
    return out.transpose(0, 1), scores.logsumexp(-1).transpose(0, 1)


def live_nodes(tree: DraftTree, request: int) -> int:
    return int(tree.num_nodes[request])


def rows_of(case: Paged, cache: Tensor, request: int) -> Tensor:
    return cache[case.metadata.slots[request, case.metadata.live[request]], 0].double()


CASES = {
    # heads, rank, rope, tree, nodes, prefix lengths, page
    "one head, no prefix": (1, 16, 8, "random", 256, [0, 0], 1),
    "one head, long prefixes": (1, 16, 8, "random", 256, [4096, 2049], 16),
    "4 heads": (4, 32, 16, "star", 33, [1, 63, 64, 65], 16),
    "8 heads": (8, 64, 16, "random", 64, [1000, 17, 0], 64),
    "16 heads, full width": (16, 512, 64, "random", 16, [4096], 64),
    "64 heads, full width": (64, 512, 64, "random", 33, [300, 0], 1),
    "64 heads, chain": (64, 32, 8, "chain", 16, [129], 16),
    "widest tree": (4, 16, 8, "random", 256, [15], 64),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_attention_over_up_projected_keys(name: str) -> None:
    heads, rank, rope, kind, nodes, lens, page = CASES[name]
    case = paged_case(make_tree(kind, len(lens), nodes), lens, page)
    weights = Projections.random(heads, rank)
    cache = case.cache(1, rank + rope, dtype=torch.float64)
    q_nope = case.queries(heads, weights.k_up.shape[1], torch.float64)
    q_rope = case.queries(heads, rope, torch.float64)
    shape = {"value_dim": rank, "scale": 0.31}
    out, lse = latent_tree_attention(weights.absorb(q_nope, q_rope), cache, case.metadata, **shape)
    assert out.shape == (len(lens), nodes, heads, rank)
    assert torch.isfinite(out).all()  # padding nodes too: their rows go through the whole model
    finite = cache.nan_to_num(0.0)
    fast = latent_tree_attention_sdpa(
        weights.absorb(q_nope, q_rope), finite, case.metadata, **shape
    )
    for request, prefix_len in enumerate(lens):
        live = slice(live_nodes(case.tree, request))
        expected, expected_lse = unabsorbed(
            weights,
            q_nope[request],
            q_rope[request],
            rows_of(case, cache, request),
            dense_mask(case.tree, request, prefix_len, window=-1),
            scale=0.31,
        )
        for latent in (out, fast):
            projected = torch.einsum("nhr,hdr->nhd", latent[request, live], weights.v_up)
            assert (projected - expected[live]).abs().max() < 1e-10
        assert (lse[request, live] - expected_lse[live]).abs().max() < 1e-10


@pytest.mark.parametrize(("prefix_len", "page"), [(0, 1), (31, 16), (1023, 64)])
def test_bfloat16_is_rounded_once(prefix_len: int, page: int) -> None:
    """Sums are float32, so that the error is that of rounding the result: 2^-8 of it, at most."""
    heads, rank, rope = 8, 512, 64
    case = paged_case(make_tree("random", 1, 32), [prefix_len], page)
    cache = case.cache(1, rank + rope, dtype=torch.bfloat16)
    q = case.queries(heads, rank + rope, torch.bfloat16)
    out, lse = latent_tree_attention(q, cache, case.metadata, value_dim=rank, scale=0.05)
    exact, exact_lse = latent_tree_attention(
        q.double(), cache.double(), case.metadata, value_dim=rank, scale=0.05
    )
    assert out.dtype == torch.bfloat16
    assert lse.dtype == torch.float32
    assert ((out.double() - exact).abs() <= exact.abs() * 2**-8 + 1e-5).all()
    assert (lse.double() - exact_lse).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["chain", "random"])
@pytest.mark.parametrize("around", [-3, -1, 0, 1, 50])
def test_window_around_the_depth_of_the_tree(kind: str, around: int) -> None:
    """Windows smaller than, equal to and larger than the depth, for latent rows and for K/V."""
    heads, rank, rope, prefix_len = 3, 16, 8, 40
    tree = make_tree(kind, 1, 24)
    case = paged_case(tree, [prefix_len], 16)
    window = max(0, int(tree.depth.max()) + around)
    mask = dense_mask(tree, 0, prefix_len, window)
    weights = Projections.random(heads, rank)
    cache = case.cache(1, rank + rope, dtype=torch.float64)
    q_nope = case.queries(heads, weights.k_up.shape[1], torch.float64)
    q_rope = case.queries(heads, rope, torch.float64)
    q = weights.absorb(q_nope, q_rope)
    rows = rows_of(case, cache, 0)
    expected, _ = unabsorbed(weights, q_nope[0], q_rope[0], rows, mask, scale=0.31)
    shape = {"value_dim": rank, "scale": 0.31, "window": window}
    out, _ = latent_tree_attention(q, cache, case.metadata, **shape)
    fast = latent_tree_attention_sdpa(q, cache.nan_to_num(0.0), case.metadata, **shape)
    for latent in (out, fast):
        projected = torch.einsum("nhr,hdr->nhd", latent[0], weights.v_up)
        assert (projected - expected).abs().max() < 1e-10

    scores = torch.einsum("nhd,sd->hns", q[0], rows) * 0.31
    plain = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ rows
    grouped, _ = tree_attention(q, cache, cache, case.metadata, scale=0.31, window=window)
    assert (grouped[0] - plain.transpose(0, 1)).abs().max() < 1e-10
