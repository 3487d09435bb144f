"""Launches of the Triton tree-attention kernel: grouped heads, and MLA over a latent cache."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from sglang_ddtree._kernels.triton.tree_attention import tree_attention_kernel
from sglang_ddtree.ops.tree_attention.paged import PagedTree, SplitWorkspace
from sglang_ddtree.ops.triton_support import dot_type


def tree_attention_triton(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    tree: PagedTree,
    workspace: SplitWorkspace,
    *,
    scale: float,
    window: int = -1,
    soft_cap: float = 0.0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Grouped-query attention of all nodes, in one launch.

    Args:
        q: ``[bs, N, H, D]``, consecutive along D.
        k_cache: ``[slots, Hkv, D]`` of q's dtype or fp8, consecutive along D.
        v_cache: ``[slots, Hkv, Dv]`` likewise.
        scale: multiplies ``q . k``.
        window: keys more than this many positions before a node are hidden; -1 for none.
        soft_cap: when positive, scores become ``soft_cap * tanh(score / soft_cap)``.
        k_scale, v_scale: what the values of fp8 caches are multiplied with.
        out, lse: to write into, for captured graphs.

    Returns:
        Output ``[bs, N, H, Dv]`` in q's dtype and log-sum-exp float32 ``[bs, N, H]``.

    Raises ``ValueError`` where shapes do not agree or the workspace is too small.
    """
    _, _, heads, dim = q.shape
    kv_heads, v_dim = k_cache.shape[1], v_cache.shape[2]
    if heads % kv_heads or k_cache.shape[2] != dim:
        raise ValueError(
            f"{heads} heads of {dim} do not fit {kv_heads} KV heads of {k_cache.shape[2]}"
        )
    return _launch(
        q,
        k_cache,
        v_cache,
        tree,
        workspace,
        qk_scale=scale * k_scale,
        v_scale=v_scale,
        window=window,
        soft_cap=soft_cap,
        v_dim=v_dim,
        rope=0,
        out=out,
        lse=lse,
    )


def mla_tree_attention_triton(
    q: Tensor,
    latent_cache: Tensor,
    tree: PagedTree,
    workspace: SplitWorkspace,
    *,
    scale: float,
    latent_dim: int,
    latent_scale: float = 1.0,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """MLA in its absorbed form: every head reads the one latent row of a position.

    Args:
        q: ``[bs, N, H, L + R]``, the query in the latent space beside its rope part.
        latent_cache: ``[slots, 1, L + R]`` or ``[slots, L + R]``, of q's dtype or fp8. The value of
            a position is the first L columns of its row.
        latent_dim: L, a power of two as R is.

    Returns, other arguments and errors: as :func:`tree_attention_triton`, with Dv = L.
    """
    cache = latent_cache if latent_cache.dim() == 3 else latent_cache.unsqueeze(1)
    rope = q.shape[-1] - latent_dim
    if cache.shape[1] != 1 or cache.shape[2] != q.shape[-1] or rope < 1:
        raise ValueError(
            f"queries of {latent_dim} + {rope} do not fit a cache of {list(latent_cache.shape)}"
        )
    if latent_dim & (latent_dim - 1) or rope & (rope - 1):
        raise ValueError(f"{latent_dim} and {rope} must be powers of two")
    return _launch(
        q,
        cache,
        cache,
        tree,
        workspace,
        qk_scale=scale * latent_scale,
        v_scale=latent_scale,
        window=-1,
        soft_cap=0.0,
        v_dim=latent_dim,
        rope=rope,
        out=out,
        lse=lse,
    )


def row_tiles(nodes: int, group: int, dim: int) -> tuple[int, int]:
    """Rows of a tile, and how many tiles the nodes of one request make for one KV head."""
    largest = 32 if dim > 256 else 64  # the accumulator is as wide as a value
    rows = min(largest, max(16, triton.next_power_of_2(nodes * group)))
    return rows, triton.cdiv(nodes * group, rows)


def key_block(dim: int, latent: bool) -> int:
    """Keys of a tile: what fits into 99 KB of shared memory beside the queries."""
    if dim <= 128:
        return 64
    return 32 if dim <= 256 or latent else 16


def _launch(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    tree: PagedTree,
    workspace: SplitWorkspace,
    *,
    qk_scale: float,
    v_scale: float,
    window: int,
    soft_cap: float,
    v_dim: int,
    rope: int,
    out: Tensor | None,
    lse: Tensor | None,
) -> tuple[Tensor, Tensor]:
    bs, nodes, heads, q_dim = q.shape
    if (bs, nodes) != (tree.bs, tree.nodes):
        raise ValueError(f"q is {list(q.shape)}, but the tree is [{tree.bs}, {tree.nodes}]")
    if q.stride(3) != 1 or k_cache.stride(2) != 1 or v_cache.stride(2) != 1:
        raise ValueError("q and the caches must be consecutive along their last dimension")
    workspace.check(bs, nodes, heads, v_dim)
    out = q.new_empty(bs, nodes, heads, v_dim) if out is None else out
    lse = q.new_empty(bs, nodes, heads, dtype=torch.float32) if lse is None else lse
    if not (out.is_contiguous() and lse.is_contiguous()):
        raise ValueError("out and lse must be contiguous")

    kv_heads, dim = k_cache.shape[1], q_dim - rope
    group = heads // kv_heads
    rows, tiles = row_tiles(nodes, group, dim)
    block_dim = triton.next_power_of_2(dim)
    tree_attention_kernel[(tiles, kv_heads, bs * (workspace.splits + 1))](
        q,
        k_cache,
        v_cache,
        out,
        lse,
        workspace.out,
        workspace.lse,
        workspace.arrived,
        tree.table,
        tree.request_rows,
        tree.prefix_lens,
        tree.ancestors,
        tree.depth,
        qk_scale,
        v_scale,
        soft_cap,
        window,
        workspace.min_keys,
        tree.table.stride(0),
        q.stride(0),
        q.stride(1),
        q.stride(2),
        k_cache.stride(0),
        k_cache.stride(1),
        v_cache.stride(0),
        v_cache.stride(1),
        NODES=nodes,
        HEADS=heads,
        GROUP=group,
        DIM=dim,
        ROPE=rope,
        V_DIM=v_dim,
        BLOCK_DIM=max(16, block_dim),
        BLOCK_V=max(16, triton.next_power_of_2(v_dim)),
        BLOCK_ROWS=rows,
        BLOCK_KEYS=key_block(block_dim, rope > 0),
        WORDS=tree.ancestors.shape[2],
        PAGE=tree.page_size,
        SPLITS=workspace.splits,
        DOT_TYPE=dot_type(q.dtype),
        LATENT=rope > 0,
        WINDOWED=window >= 0,
        CAPPED=soft_cap > 0,
        num_warps=8 if block_dim >= 256 else 4,
        num_stages=1 if block_dim >= 256 else 2,
    )
    return out, lse
