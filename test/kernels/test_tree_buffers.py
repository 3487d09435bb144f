"""The static buffers of the ``ddtree`` backend, which a captured forward reads at each replay."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import Tensor

from sglang_ddtree.ops.tree_attention.paged import PagedTree
from sglang_ddtree.tree.topology import num_words, unpack_bits

buffers = importlib.import_module("sglang_ddtree.engine.attention.buffers")
TreeBuffers, WindowPool, LayerKind, Workspaces = (
    buffers.TreeBuffers,
    buffers.WindowPool,
    buffers.LayerKind,
    buffers.Workspaces,
)


def paged_table(rows: int, columns: int, page_size: int, seed: int = 0) -> Tensor:
    """Slots of whole pages in random order, as an allocator gives them after a while."""
    pages = -(-columns // page_size)
    generator = torch.Generator().manual_seed(seed)
    first = torch.randperm(rows * pages, generator=generator).view(rows, pages, 1) * page_size
    slots = first + torch.arange(page_size)
    return slots.view(rows, -1)[:, :columns].int().contiguous()


def translated(slots: Tensor, page_size: int) -> Tensor:
    """Another pool's slots, page by page in reverse."""
    return (9999 - slots // page_size) * page_size + slots % page_size


@pytest.mark.parametrize("width", [1, 2, 63, 64, 65, 129, 256])
def test_before_the_first_step_they_hold_chains(width: int) -> None:
    tree = TreeBuffers(paged_table(3, 300, 1), 2, width, 1, None).tree(2)
    chain = torch.ones(width, width).tril().bool()
    assert torch.equal(unpack_bits(tree.ancestors, width), chain.expand(2, -1, -1))
    assert torch.equal(tree.depth, torch.arange(width).int().expand(2, -1))


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("window", [5, 40])
def test_window_layers_find_every_row_that_they_read(page_size: int, window: int) -> None:
    width, table = 9, paged_table(5, 200, page_size)
    pool = WindowPool(lambda slots: translated(slots, page_size), window)
    static = TreeBuffers(table, 4, width, page_size, pool)
    rows, lens = torch.tensor([4, 0, 2]), torch.tensor([0, 37, 171])
    load_trees(static, rows, lens, width)
    out_slots = torch.cat([table[row, n : n + width] for row, n in zip(rows, lens, strict=True)])
    static.load_window(3, out_slots.long())
    tree = static.window_tree(3)
    for i, (row, prefix) in enumerate(zip(rows.tolist(), lens.tolist(), strict=True)):
        for position in range(max(0, prefix - window), prefix + width):
            expected = translated(table[row, position], page_size)
            assert looked_up(tree, i, position) == expected
    assert torch.equal(static.write_slots[: 3 * width], translated(out_slots, page_size).long())
    assert not static.write_slots[3 * width :].any()


def looked_up(tree: PagedTree, request: int, position: int) -> int:
    """As the kernels look it up: one slot a page."""
    start = position // tree.page_size * tree.page_size
    row = int(tree.request_rows[request])
    return int(tree.table[row, start]) + position - start


def load_trees(static: TreeBuffers, rows: Tensor, lens: Tensor, width: int) -> None:
    star = (1 << torch.arange(width)) | 1
    ancestors = torch.zeros(len(rows), width, num_words(width), dtype=torch.int64)
    ancestors[:, :, 0] = star
    depth = torch.ones(len(rows), width, dtype=torch.int32)
    depth[:, 0] = 0
    static.load(rows, lens, depth, ancestors)


def test_a_step_changes_values_and_no_address() -> None:
    width = 6
    pool = WindowPool(lambda slots: slots + 1, 8)
    static = TreeBuffers(paged_table(5, 64, 1), 4, width, 1, pool)
    captured = [static.tree(4), static.window_tree(4)]
    before = [vars(tree).copy() for tree in captured]
    # A batch of two, padded to the four that were captured.
    rows, lens = torch.tensor([3, 1, 0, 0]), torch.tensor([7, 20, 1, 1])
    load_trees(static, rows[:2], lens[:2], width)
    static.load(rows, lens, captured[0].depth[:2].clone(), captured[0].ancestors[:2].clone())
    static.load_window(4, torch.arange(2 * width))
    for tree, was in zip(captured, before, strict=True):
        for name in ("table", "request_rows", "prefix_lens", "ancestors", "depth"):
            assert getattr(tree, name).data_ptr() == was[name].data_ptr()
        assert tree.prefix_lens.tolist() == lens.tolist()
        assert tree.depth[0].tolist() == [0, 1, 1, 1, 1, 1]
        # Requests beyond the batch keep a tree whose nodes see themselves.
        assert unpack_bits(tree.ancestors, width).diagonal(dim1=1, dim2=2).all()
    assert captured[0].request_rows.tolist() == rows.tolist()


@pytest.mark.parametrize("processors", [1, 132, 188])
def test_the_workspace_is_enough_for_every_batch(processors: int) -> None:
    kinds = {LayerKind(12, 131072), LayerKind(40, 1024), LayerKind(3, 40)}
    shape = {"width": 32, "heads": 24, "v_dim": 16}
    workspaces = Workspaces(
        kinds, 48, **shape, dtype=torch.bfloat16, device="meta", processors=processors
    )
    for kind in kinds:
        for bs in range(1, 49):
            workspace = workspaces.of(kind, bs)
            workspace.check(bs, 32, 24, 16)
            assert workspace.arrived.numel() >= bs * kind.tiles
    out, lse = workspaces.outputs(48, 32, 24, 16)
    assert out.shape == (48, 32, 24, 16)
    assert lse.shape == (48, 32, 24)
    assert out.dtype == torch.bfloat16
