"""Trees, paged tables and caches for kernel tests; what no kernel may read is NaN."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_ddtree.ops.tree_attention import TreeAttentionMetadata
from sglang_ddtree.ops.tree_attention.paged import PagedTree
from sglang_ddtree.tree import DraftTree
from unit.strategies import tree_of


def make_tree(kind: str, bs: int, nodes: int, seed: int = 0) -> DraftTree:
    """Chains, stars and random trees; the last request of a batch has half its nodes as padding."""
    generator = torch.Generator().manual_seed(seed)
    parents, tokens = [], []
    for request in range(bs):
        live = nodes if request < bs - 1 or bs == 1 else max(1, nodes // 2)
        reach = {"chain": 1, "star": nodes, "random": max(2, nodes // 3)}[kind]
        back = torch.randint(1, reach + 1, (live,), generator=generator).tolist()
        up = {"chain": lambda i, _: i - 1, "star": lambda i, _: 0}.get(
            kind, lambda i, step: max(i - step, 0)
        )
        parents.append([-1] + [up(i, back[i]) for i in range(1, live)])
        tokens.append(torch.randint(0, 50, (live,), generator=generator).tolist())
    return tree_of(parents, tokens, nodes)


@dataclass(frozen=True, eq=False)
class Paged:
    """One step's slots in the form of the reference and in that of the kernels."""

    tree: DraftTree
    metadata: TreeAttentionMetadata
    paged: PagedTree
    num_slots: int
    generator: torch.Generator

    def cache(self, *row: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """``[slots, *row]``: random where a node may read, NaN elsewhere."""
        cache = torch.full((self.num_slots, *row), math.nan)
        for request, live in enumerate(self.metadata.live):
            slots = self.metadata.slots[request, live]
            cache[slots] = torch.randn(len(slots), *row, generator=self.generator)
        return cache.to(dtype)

    def queries(self, heads: int, dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
        bs, nodes = self.tree.tokens.shape
        return torch.randn(bs, nodes, heads, dim, generator=self.generator).to(dtype)


def paged_case(tree: DraftTree, prefix_lens: list[int], page_size: int, seed: int = 0) -> Paged:
    """Shuffled pages in shuffled rows of a table whose other entries lead out of the cache."""
    generator = torch.Generator().manual_seed(seed)
    bs, nodes = tree.tokens.shape
    columns = max(prefix_lens) + nodes
    pages = -(-columns // page_size)
    order = torch.randperm(bs * pages, generator=generator) + 1
    slots = (order.view(bs, pages, 1) * page_size + torch.arange(page_size)).flatten(1)
    rows = torch.randperm(bs + 2, generator=generator)[:bs]
    table = torch.full((bs + 2, pages * page_size), 2**30, dtype=torch.int32)
    for request, prefix_len in enumerate(prefix_lens):
        end = prefix_len + nodes
        table[rows[request], :end] = slots[request, :end].int()
    lens = torch.tensor(prefix_lens)
    return Paged(
        tree,
        TreeAttentionMetadata(slots, lens, tree.ancestor_mask(), tree.depth.long()),
        PagedTree(table, rows, lens, tree.ancestors, tree.depth, page_size),
        num_slots=(bs * pages + 1) * page_size,
        generator=generator,
    )


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """An output buffer in which a value that was not written shows."""
    return torch.full(shape, math.nan, dtype=dtype)
