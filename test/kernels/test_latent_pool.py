"""Commits inside SGLang's latent pool, and reading its rows back, at every dtype it has."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.tree_cases import make_tree
from sglang_ddtree.ops.tree_attention import (
    TreeAttentionMetadata,
    latent_tree_attention,
    latent_tree_attention_sdpa,
)
from sglang_ddtree.tree import accept

pools = importlib.import_module("sglang.srt.mem_cache.memory_pool")
runtime = importlib.import_module("sglang.srt.runtime_context")

RANK, ROPE, LAYERS = 32, 16, 2
PREFIX_LENS = (0, 5, 64)
DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    with runtime.get_parallel().override(dcp_enabled=False):
        yield


def step(page_size: int, nodes: int = 24) -> tuple[Any, TreeAttentionMetadata, Tensor, int]:
    """Trees after ragged prefixes on shuffled pages: tree, metadata, tokens of the target, slots.

    Every request accepts a scattered path: the target's token at a node is that of its last child.
    """
    tree = make_tree("random", len(PREFIX_LENS), nodes, seed=page_size)
    generator = torch.Generator().manual_seed(page_size)
    columns = max(PREFIX_LENS) + nodes
    pages = -(-columns // page_size)
    order = torch.randperm(len(PREFIX_LENS) * pages, generator=generator) + 1
    slots = (order.view(len(PREFIX_LENS), pages, 1) * page_size + torch.arange(page_size)).flatten(
        1
    )
    metadata = TreeAttentionMetadata(
        slots[:, :columns], torch.tensor(PREFIX_LENS), tree.ancestor_mask(), tree.depth.long()
    )
    targets = torch.full_like(tree.tokens, -1)
    for request in range(tree.bs):
        for node in range(1, int(tree.num_nodes[request])):
            targets[request, tree.parent[request, node]] = tree.tokens[request, node]
    return tree, metadata, targets, (len(PREFIX_LENS) * pages + 1) * page_size


def filled_pool(dtype: torch.dtype, page_size: int, num_slots: int) -> tuple[Any, list[Tensor]]:
    """A pool whose every slot holds a row of its own, and those rows as they were handed over."""
    pool = pools.MLATokenToKVPool(
        size=num_slots - page_size,
        page_size=page_size,
        dtype=dtype,
        kv_lora_rank=RANK,
        qk_rope_head_dim=ROPE,
        layer_num=LAYERS,
        device="cpu",
        enable_memory_saver=False,
    )
    generator = torch.Generator().manual_seed(1)
    written = []
    for layer in range(LAYERS):
        rows = torch.randn(num_slots, 1, RANK + ROPE, generator=generator)
        at = SimpleNamespace(layer_id=layer)
        pool.set_kv_buffer(at, torch.arange(num_slots), rows, rows[..., :RANK])
        written.append(rows)
    return pool, written


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_commit_moves_the_rows_of_the_accepted_path(dtype: torch.dtype, page_size: int) -> None:
    tree, metadata, targets, num_slots = step(page_size)
    pool, written = filled_pool(dtype, page_size, num_slots)
    accepted = accept(tree, targets, max_depth=15)
    assert (accepted.path[:, 1:] > torch.arange(1, accepted.path.shape[1])).any()
    columns = torch.tensor(PREFIX_LENS)[:, None] + torch.arange(tree.width)
    slots = metadata.slots.gather(1, columns)
    pool.move_kv_cache(
        slots[:, : accepted.path.shape[1]].reshape(-1), slots.gather(1, accepted.path).reshape(-1)
    )
    for layer, rows in enumerate(written):
        stored = pool.get_key_buffer(layer)
        expected = rows.to(dtype).float()
        untouched = torch.ones(num_slots, dtype=torch.bool)
        untouched[slots] = False
        assert torch.equal(stored.float()[untouched], expected[untouched])
        for request in range(tree.bs):
            path = [0]  # walked by hand, from parents and tokens
            while True:
                children = (tree.parent[request] == path[-1]).nonzero().flatten().tolist()
                wanted = int(targets[request, path[-1]])
                match = [c for c in children if int(tree.tokens[request, c]) == wanted]
                if not match or len(path) > 15:
                    break
                path.append(match[0])
            assert len(path) > 1
            for step_index, node in enumerate(path):
                got = stored[slots[request, step_index]].float()
                assert torch.equal(got, expected[slots[request, node]])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_reads_the_pool_at_its_dtype(dtype: torch.dtype) -> None:
    """Rows are rounded once, when they are written; queries and sums stay float32."""
    tree, metadata, _, num_slots = step(page_size=16)
    pool, written = filled_pool(dtype, 16, num_slots)
    q = torch.randn(tree.bs, tree.width, 6, RANK + ROPE)
    shape = {"value_dim": RANK, "scale": 0.2}
    cache = pool.get_key_buffer(0)
    assert cache.dtype == dtype
    expected, _ = latent_tree_attention(
        q.double(), written[0].to(dtype).double(), metadata, **shape
    )
    out, _ = latent_tree_attention(q, cache, metadata, **shape)
    fast = latent_tree_attention_sdpa(q, cache, metadata, **shape)
    for got in (out, fast):
        assert got.dtype == torch.float32
        assert (got - expected).abs().max() < 1e-5
