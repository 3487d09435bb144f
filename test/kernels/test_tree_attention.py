"""The tree-attention reference against dense attention of one node at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sglang_ddtree.ops.tree_attention import (
    TreeAttentionMetadata,
    tree_attention,
    tree_attention_sdpa,
)
from sglang_ddtree.tree import Candidates, DraftTree, GrowthPolicy, grow
from unit.strategies import properties


@dataclass(frozen=True, eq=False)
class Case:
    """A verify step over a paged cache in which every slot that no node may read holds NaN."""

    tree: DraftTree
    prefix_lens: list[int]
    metadata: TreeAttentionMetadata
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor

    def keys_of(self, request: int, node: int, window: int) -> list[int]:
        """Cache rows that a node sees, from the parent links and the definition of a window."""
        prefix_len = self.prefix_lens[request]
        depth = self.tree.depth[request].tolist()
        position = prefix_len + depth[node]
        seen = {column: column for column in range(prefix_len)}  # column -> position
        while node >= 0:
            seen[prefix_len + node] = prefix_len + depth[node]
            node = int(self.tree.parent[request, node])
        near = [c for c, other in seen.items() if window < 0 or position - other <= window]
        return self.metadata.slots[request, sorted(near)].tolist()


@st.composite
def cases(draw: st.DrawFn, dtype: torch.dtype = torch.float64) -> Case:
    """Ragged prefixes, empty ones included; trees with padding; shuffled pages; GQA groups."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    bs, budget = draw(st.integers(1, 3)), draw(st.sampled_from([1, 6, 20, 70]))
    logits = torch.randn(bs, draw(st.integers(1, 8)), 12, generator=generator) * 2
    logits[torch.rand(logits.shape, generator=generator) < 0.5] = -math.inf  # leaves padding
    roots = torch.randint(0, 12, (bs,), generator=generator)
    tree = grow(Candidates.from_logits(logits, 4), roots, GrowthPolicy(budget, draw(st.booleans())))

    prefix_lens = [draw(st.sampled_from([0, 1, 15, 16, 17, 40])) for _ in range(bs)]
    page_size = draw(st.sampled_from([1, 16]))
    columns = max(prefix_lens) + tree.width
    pages = -(-columns // page_size)
    order = torch.randperm(bs * pages, generator=generator) + 1  # page 0 is never given out
    slots = (order.view(bs, pages, 1) * page_size + torch.arange(page_size)).flatten(1)
    slots = slots[:, :columns].clone()
    for request, prefix_len in enumerate(prefix_lens):
        slots[request, prefix_len + tree.width :] = 0

    kv_heads, head_dim = draw(st.sampled_from([1, 2])), 8
    heads = kv_heads * draw(st.sampled_from([1, 3]))
    num_slots = (bs * pages + 1) * page_size
    caches = []
    for width in (head_dim, draw(st.sampled_from([8, 4]))):
        cache = torch.full((num_slots, kv_heads, width), math.nan, dtype=dtype)
        for request, prefix_len in enumerate(prefix_lens):
            live = slots[request, : prefix_len + tree.width]
            values = torch.randn(len(live), kv_heads, width, generator=generator, dtype=dtype)
            cache[live] = values
        caches.append(cache)
    metadata = TreeAttentionMetadata(
        slots, torch.tensor(prefix_lens), tree.ancestor_mask(), tree.depth.long()
    )
    q = torch.randn(bs, tree.width, heads, head_dim, generator=generator, dtype=dtype)
    return Case(tree, prefix_lens, metadata, q, *caches)


def dense(q: Tensor, k: Tensor, v: Tensor, scale: float, soft_cap: float) -> tuple[Tensor, Tensor]:
    """One node: q [H, D] over k, v [S, Hkv, D*] by the definition of softmax attention."""
    group = q.shape[0] // k.shape[1]
    k, v = (cache.repeat_interleave(group, dim=1) for cache in (k, v))
    scores = torch.einsum("hd,shd->hs", q, k) * scale
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
        out = torch.einsum("hs,shd->hd", scores.softmax(-1), v)
    else:
        sdpa = scaled_dot_product_attention(
            q.unsqueeze(1), k.transpose(0, 1), v.transpose(0, 1), scale=scale
        )
        out = sdpa.squeeze(1)
    return out, scores.logsumexp(-1)


def check(case: Case, window: int, soft_cap: float, tolerance: float) -> None:
    scale = 0.4
    out, lse = tree_attention(
        case.q,
        case.k_cache,
        case.v_cache,
        case.metadata,
        scale=scale,
        window=window,
        soft_cap=soft_cap,
    )
    assert out.dtype == case.q.dtype
    assert torch.isfinite(out).all()  # padding nodes too: their rows go through the whole model
    for request in range(case.tree.bs):
        for node in range(int(case.tree.num_nodes[request])):
            rows = case.keys_of(request, node, window)
            expected, expected_lse = dense(
                case.q[request, node].double(),
                case.k_cache[rows].double(),
                case.v_cache[rows].double(),
                scale,
                soft_cap,
            )
            assert (out[request, node] - expected).abs().max() < tolerance
            assert (lse[request, node] - expected_lse).abs().max() < tolerance


@given(case=cases())
@properties(60)
def test_every_node_attends_to_the_prefix_and_its_ancestors(case: Case) -> None:
    check(case, window=-1, soft_cap=0.0, tolerance=1e-10)


@given(case=cases(), window=st.sampled_from([0, 1, 4, 15, 16, 200]))
@properties(60)
def test_sliding_window_is_measured_in_positions(case: Case, window: int) -> None:
    check(case, window=window, soft_cap=0.0, tolerance=1e-10)


@given(case=cases(), window=st.sampled_from([-1, 5]))
@properties(30)
def test_soft_cap(case: Case, window: int) -> None:
    check(case, window=window, soft_cap=1.5, tolerance=1e-10)


@given(case=cases(dtype=torch.float32))
@properties(20)
def test_float32_inputs(case: Case) -> None:
    check(case, window=-1, soft_cap=0.0, tolerance=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_accumulates_in_float32(dtype: torch.dtype) -> None:
    """A thousand equal keys: a sum kept in half precision would be off by whole units."""
    n = 1000
    q = torch.zeros(1, 1, 2, 8, dtype=dtype)
    cache = torch.ones(n + 1, 1, 8, dtype=dtype)
    metadata = TreeAttentionMetadata(
        torch.arange(n + 1)[None],
        torch.tensor([n]),
        torch.ones(1, 1, 1, dtype=torch.bool),
        torch.zeros(1, 1, dtype=torch.long),
    )
    out, lse = tree_attention(q, cache, cache, metadata, scale=1.0)
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    torch.testing.assert_close(out, torch.ones_like(out))
    torch.testing.assert_close(lse, torch.full_like(lse, math.log(n + 1)))


def test_siblings_have_the_same_window() -> None:
    """Two children of the root sit at one position, though their rows are neighbours."""
    tree = grow(
        Candidates.from_logits(torch.tensor([[[0.0, 0.0, 0.0]]]), 3),
        torch.tensor([0]),
        GrowthPolicy(3),
    )
    metadata = TreeAttentionMetadata(
        torch.arange(9)[None], torch.tensor([5]), tree.ancestor_mask(), tree.depth.long()
    )
    visible = metadata.visible(window=2)[0].int().tolist()
    assert visible[0] == [0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert visible[1:] == [
        [0, 0, 0, 0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 0, 1, 0],
        [0, 0, 0, 0, 1, 1, 0, 0, 1],
    ]


@given(case=cases(), window=st.sampled_from([-1, 0, 4, 200]))
@properties(60)
def test_fused_torch_attention_equals_the_reference(case: Case, window: int) -> None:
    for cache in (case.k_cache, case.v_cache):
        cache.nan_to_num_(0.0)  # its contract: rows that no node sees are finite
    expected, _ = tree_attention(
        case.q, case.k_cache, case.v_cache, case.metadata, scale=0.4, window=window
    )
    out = tree_attention_sdpa(
        case.q, case.k_cache, case.v_cache, case.metadata, scale=0.4, window=window
    )
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
