"""Launches of the CUDA kernel for MLA tree attention (csrc/include/ddtree)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sglang_ddtree.ops.cuda_library import launch
from sglang_ddtree.ops.cuda_params import MlaParams, address, require
from sglang_ddtree.ops.tree_attention.paged import PagedTree, SplitWorkspace

LATENT, ROPE = 512, 64
_CACHES = {torch.bfloat16: "bf16", torch.float8_e4m3fn: "e4m3"}


def mla_tree_attention_cuda(
    q: Tensor,
    latent_cache: Tensor,
    tree: PagedTree,
    workspace: SplitWorkspace,
    *,
    scale: float,
    latent_dim: int = LATENT,
    latent_scale: float = 1.0,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """MLA in its absorbed form, in one launch; as `mla_tree_attention_triton` with L = 512, R = 64.

    q: bfloat16 ``[bs, N, H, 576]``. latent_cache: bfloat16 or e4m3 ``[slots, (1,) 576]``.
    Page sizes are powers of two. Raises ``ValueError`` for what the kernel does not take.
    """
    if latent_dim != LATENT:
        raise ValueError(f"the kernel is for a latent rank of {LATENT}, got {latent_dim}")
    bs, nodes, heads, _ = q.shape
    out = q.new_empty(bs, nodes, heads, LATENT) if out is None else out
    lse = q.new_empty(bs, nodes, heads, dtype=torch.float32) if lse is None else lse
    name, params = mla_arguments(q, latent_cache, tree, workspace, scale, latent_scale, out, lse)
    launch("mla_tree_attention", name, params, q.device)
    return out, lse


def row_tiles(rows: int) -> tuple[int, int]:
    """Rows of a block and how many blocks ``rows`` = nodes x heads of a request make."""
    tile = 16 if rows <= 16 else 32
    return tile, -(-rows // tile)


def mla_arguments(
    q: Tensor,
    latent_cache: Tensor,
    tree: PagedTree,
    workspace: SplitWorkspace,
    scale: float,
    latent_scale: float,
    out: Tensor,
    lse: Tensor,
) -> tuple[str, MlaParams]:
    """The variant to launch and its arguments; errors of `mla_tree_attention_cuda`."""
    bs, nodes, heads, dim = q.shape
    cache = latent_cache.squeeze(1) if latent_cache.dim() == 3 else latent_cache
    if dim != LATENT + ROPE or cache.dim() != 2 or cache.shape[1] != dim or cache.stride(1) != 1:
        raise ValueError(
            f"q must be [bs, N, H, {LATENT + ROPE}] over a cache of rows as wide, got "
            f"{list(q.shape)} and {list(latent_cache.shape)}"
        )
    if (bs, nodes) != (tree.bs, tree.nodes):
        raise ValueError(f"q is {list(q.shape)}, but the tree is [{tree.bs}, {tree.nodes}]")
    if cache.dtype not in _CACHES:
        raise ValueError(f"the cache must be bfloat16 or float8_e4m3fn, got {cache.dtype}")
    if tree.page_size & (tree.page_size - 1):
        raise ValueError(f"page_size must be a power of two, got {tree.page_size}")
    if nodes > 256:
        raise ValueError(f"a tree may have 256 nodes, got {nodes}")
    aligned: dict[str, Any] = {"q": q, "latent_cache": cache}
    for name, value in aligned.items():
        if value.data_ptr() % 16 or value.stride(0) * value.itemsize % 16:
            raise ValueError(f"rows of {name} must be 16-byte aligned")
    require(
        q=(q, torch.bfloat16),
        request_rows=(tree.request_rows, torch.int64),
        prefix_lens=(tree.prefix_lens, torch.int64),
        out=(out, torch.bfloat16),
        lse=(lse, torch.float32),
    )
    workspace.check(bs, nodes, heads, LATENT)
    tile, _ = row_tiles(nodes * heads)
    return f"mla_{tile}_{_CACHES[cache.dtype]}", MlaParams(
        q=address(q),
        cache=address(cache),
        table=address(tree.table),
        request_rows=address(tree.request_rows),
        prefix_lens=address(tree.prefix_lens),
        ancestors=address(tree.ancestors),
        out=address(out),
        lse=address(lse),
        partial=address(workspace.out),
        partial_lse=address(workspace.lse),
        arrived=address(workspace.arrived),
        table_stride=tree.table.stride(0),
        cache_stride=cache.stride(0),
        qk_scale=scale * latent_scale,
        v_scale=latent_scale,
        bs=bs,
        nodes=nodes,
        heads=heads,
        words=tree.ancestors.shape[2],
        splits=workspace.splits,
        page_size=tree.page_size,
        min_keys=workspace.min_keys,
    )
