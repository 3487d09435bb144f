"""The Triton tree-attention kernel against the torch reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.tree_cases import Paged, make_tree, paged_case, poisoned
from sglang_ddtree.ops.tree_attention import tree_attention
from sglang_ddtree.ops.tree_attention.latent import latent_tree_attention
from sglang_ddtree.ops.tree_attention.paged import PagedTree, SplitWorkspace, choose_splits
from sglang_ddtree.ops.tree_attention.triton import (
    mla_tree_attention_triton,
    tree_attention_triton,
)


def moved(tree: PagedTree, device: str) -> PagedTree:
    fields = (tree.table, tree.request_rows, tree.prefix_lens, tree.ancestors, tree.depth)
    return PagedTree(*(x.to(device) for x in fields), tree.page_size)


def workspace_of(case: Paged, heads: int, v_dim: int, splits: int, device: str) -> SplitWorkspace:
    bs, nodes = case.tree.tokens.shape
    workspace = SplitWorkspace.allocate(bs, nodes, heads, v_dim, splits, device, min_keys=40)
    workspace.out.fill_(torch.nan)
    workspace.lse.fill_(torch.nan)
    return workspace


def run_gqa(
    case: Paged,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    device: str,
    splits: int,
    window: int = -1,
    soft_cap: float = 0.0,
    **scales: float,
) -> tuple[Tensor, Tensor]:
    bs, nodes, heads, _ = q.shape
    v_dim = v.shape[2]
    workspace = workspace_of(case, heads, v_dim, splits, device)
    out = poisoned(bs, nodes, heads, v_dim, dtype=q.dtype).to(device)
    lse = poisoned(bs, nodes, heads).to(device)
    tree_attention_triton(
        q.to(device),
        k.to(device),
        v.to(device),
        moved(case.paged, device),
        workspace,
        scale=0.3,
        window=window,
        soft_cap=soft_cap,
        out=out,
        lse=lse,
        **scales,
    )
    assert (workspace.arrived == 0).all()  # ready for the next launch
    return out.cpu(), lse.cpu()


CASES = [
    # kind, bs, nodes, prefix lengths, page, (heads, kv heads), dim, v dim, splits, window, cap
    ("random", 2, 17, [0, 70], 1, (6, 2), 64, 64, 3, -1, 0.0),
    ("random", 2, 17, [33, 150], 16, (4, 1), 64, 64, 2, 5, 0.0),
    ("star", 1, 9, [129], 64, (2, 2), 128, 128, 2, -1, 1.5),
    ("chain", 2, 16, [15, 16], 16, (2, 1), 64, 32, 1, 20, 1.5),
    ("random", 1, 70, [31], 16, (2, 1), 16, 16, 4, 0, 0.0),
    ("random", 1, 255, [5], 4, (1, 1), 24, 8, 1, 40, 0.0),
    ("chain", 1, 1, [0], 1, (1, 1), 64, 64, 2, -1, 0.0),
    ("star", 2, 6, [7, 63], 4, (3, 1), 256, 256, 2, 1, 0.0),
]


@pytest.mark.parametrize(
    ("kind", "bs", "nodes", "lens", "page", "heads", "dim", "v_dim", "splits", "window", "cap"),
    CASES,
)
def test_equals_the_reference(
    kind: str,
    bs: int,
    nodes: int,
    lens: list[int],
    page: int,
    heads: tuple[int, int],
    dim: int,
    v_dim: int,
    splits: int,
    window: int,
    cap: float,
    device: str,
) -> None:
    case = paged_case(make_tree(kind, bs, nodes, seed=nodes), lens, page, seed=nodes)
    q, k, v = case.queries(heads[0], dim), case.cache(heads[1], dim), case.cache(heads[1], v_dim)
    out, lse = run_gqa(case, q, k, v, device, splits, window, cap)
    expected, expected_lse = tree_attention(
        q, k, v, case.metadata, scale=0.3, window=window, soft_cap=cap
    )
    torch.testing.assert_close(out, expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(lse, expected_lse, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_half_and_fp8_caches(dtype: torch.dtype, device: str) -> None:
    case = paged_case(make_tree("random", 2, 17), [40, 3], 16)
    q = case.queries(4, 64, torch.bfloat16)
    k, v = case.cache(2, 64), case.cache(2, 64)
    scales = {"k_scale": 1.0, "v_scale": 1.0}
    if dtype == torch.float8_e4m3fn:
        scales = {"k_scale": 0.5, "v_scale": 0.25}
        k, v = k / 0.5, v / 0.25
    k, v = k.to(dtype), v.to(dtype)
    out, lse = run_gqa(case, q, k, v, device, 2, **scales)
    expected, expected_lse = tree_attention(
        q.float(),
        k.float() * scales["k_scale"],
        v.float() * scales["v_scale"],
        case.metadata,
        scale=0.3,
    )
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=2e-2)
    torch.testing.assert_close(lse, expected_lse, rtol=0, atol=2e-2)


MLA_CASES = [
    # kind, bs, nodes, prefix lengths, page, heads, latent, rope, splits, dtype
    ("random", 2, 17, [0, 70], 1, 8, 32, 16, 2, torch.float32),
    ("random", 1, 33, [65], 64, 1, 64, 16, 3, torch.float32),
    ("star", 1, 5, [20], 4, 16, 512, 64, 1, torch.bfloat16),
    ("chain", 2, 9, [33, 40], 16, 3, 128, 32, 2, torch.float8_e4m3fn),
]


@pytest.mark.parametrize(
    ("kind", "bs", "nodes", "lens", "page", "heads", "latent", "rope", "splits", "dtype"),
    MLA_CASES,
)
def test_mla_reads_values_from_the_latent_rows(
    kind: str,
    bs: int,
    nodes: int,
    lens: list[int],
    page: int,
    heads: int,
    latent: int,
    rope: int,
    splits: int,
    dtype: torch.dtype,
    device: str,
) -> None:
    case = paged_case(make_tree(kind, bs, nodes), lens, page)
    exact = dtype == torch.float32
    q = case.queries(heads, latent + rope, torch.float32 if exact else torch.bfloat16)
    cache = case.cache(1, latent + rope, dtype=dtype)
    workspace = workspace_of(case, heads, latent, splits, device)
    out = poisoned(bs, nodes, heads, latent, dtype=q.dtype).to(device)
    lse = poisoned(bs, nodes, heads).to(device)
    mla_tree_attention_triton(
        q.to(device),
        cache.to(device),
        moved(case.paged, device),
        workspace,
        scale=0.1,
        latent_dim=latent,
        latent_scale=0.5,
        out=out,
        lse=lse,
    )
    expected, expected_lse = latent_tree_attention(
        q.float(), cache.float() * 0.5, case.metadata, value_dim=latent, scale=0.1
    )
    tolerance = 2e-5 if exact else 2e-2
    torch.testing.assert_close(out.cpu().float(), expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(lse.cpu(), expected_lse, rtol=0, atol=tolerance)


def test_bad_input_is_refused() -> None:
    case = paged_case(make_tree("chain", 1, 4), [5], 1)
    q, k = case.queries(2, 16), case.cache(1, 16)
    small = SplitWorkspace.allocate(1, 4, 2, 8, 1, "cpu")
    with pytest.raises(ValueError, match="allocate it for the largest batch"):
        tree_attention_triton(q, k, k, case.paged, small, scale=1.0)
    with pytest.raises(ValueError, match="do not fit"):
        tree_attention_triton(q, case.cache(3, 16), k, case.paged, small, scale=1.0)
    with pytest.raises(ValueError, match="depth is"):
        PagedTree(
            case.paged.table,
            case.paged.request_rows,
            case.paged.prefix_lens,
            case.paged.ancestors,
            case.paged.depth.long(),
        )


def test_splits_fill_the_device_and_no_more() -> None:
    assert choose_splits(bs=1, tiles=8, processors=188, longest_prefix=131072) == 22
    assert choose_splits(bs=8, tiles=8, processors=188, longest_prefix=131072) == 1
    assert choose_splits(bs=1, tiles=1, processors=188, longest_prefix=1000) == 4
    assert choose_splits(1, 16, 188, 131072, blocks_per_processor=2) == 22
