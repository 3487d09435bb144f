"""Acceptance of a draft tree, and the KV rows of the accepted path, for all layers of a pool."""

import triton
import triton.language as tl


@triton.jit
def accept_kernel(
    tokens_ptr,
    parent_ptr,
    depth_ptr,
    ancestors_ptr,
    target_ptr,
    path_ptr,
    length_ptr,
    leaf_ptr,
    out_tokens_ptr,
    bonus_ptr,
    NODES: tl.constexpr,
    WORDS: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
    BLOCK_STEPS: tl.constexpr,
):
    """Grid (requests,). A node is accepted iff the match bits cover its ancestor bits."""
    request = tl.program_id(0)
    tokens_ptr += request * NODES
    parent_ptr += request * NODES
    depth_ptr += request * NODES
    target_ptr += request * NODES
    ancestors_ptr += request * NODES * WORDS

    bit = tl.arange(0, 64)
    word = tl.arange(0, BLOCK_WORDS)
    node = word[:, None] * 64 + bit
    live = node < NODES
    up = tl.load(parent_ptr + node, mask=live, other=0)
    expected = tl.load(target_ptr + tl.maximum(up, 0), mask=live, other=-1)
    match = live & ((tl.load(tokens_ptr + node, mask=live, other=-2) == expected) | (node == 0))
    matched = tl.sum(tl.where(match, tl.full([1, 1], 1, tl.int64) << bit, 0), 1)

    index = tl.arange(0, BLOCK)
    exists = index < NODES
    depth = tl.load(depth_ptr + index, mask=exists, other=0)
    ancestors = tl.load(
        ancestors_ptr + index[:, None] * WORDS + word,
        mask=exists[:, None] & (word < WORDS),
        other=0,
    )
    missing = tl.sum(((ancestors & ~matched[None, :]) != 0).to(tl.int32), 1)
    # The deepest accepted node; of several, as in any maximum, the first.
    order = tl.where(exists & (missing == 0), depth * BLOCK + BLOCK - 1 - index, -1)
    best = tl.max(order, 0)
    length, leaf = best // BLOCK, BLOCK - 1 - best % BLOCK

    at = tl.load(ancestors_ptr + leaf * WORDS + index // 64, mask=exists, other=0)
    on_path = ((at >> (index % 64)) & 1) != 0
    step = tl.arange(0, BLOCK_STEPS)
    here = on_path & (depth == step[:, None])
    path = tl.sum(tl.where(here, index, 0), 1)
    path = tl.where(step <= length, path, leaf)
    stored = step < STEPS
    output = tl.load(target_ptr + path, mask=stored, other=0)
    tl.store(path_ptr + request * STEPS + step, path.to(tl.int64), mask=stored)
    tl.store(
        out_tokens_ptr + request * STEPS + step, tl.where(step <= length, output, 0), mask=stored
    )
    tl.store(length_ptr + request, length)
    tl.store(leaf_ptr + request, leaf.to(tl.int64))
    tl.store(bonus_ptr + request, tl.load(target_ptr + leaf))


@triton.jit
def move_rows_kernel(
    buffers_ptr,
    widths_ptr,
    path_ptr,
    length_ptr,
    slots_ptr,
    path_stride,
    slots_stride,
    STEPS: tl.constexpr,
    BLOCK_STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
    WORD: tl.constexpr,
):
    """Slot of path[j] -> slot of j, for all buffers. Grid (row blocks, buffers, requests).

    A program owns a block of columns and reads all rows of the path before it writes one, so rows
    that are both read and written are safe. Rows that stay where they are, are not touched.
    """
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    width = tl.load(widths_ptr + tl.program_id(1))
    request = tl.program_id(2)
    if tl.program_id(0) * BLOCK < width:
        base = tl.load(buffers_ptr + tl.program_id(1)).to(tl.pointer_type(WORD))
        step = tl.arange(0, BLOCK_STEPS)
        length = tl.load(length_ptr + request)
        node = tl.load(path_ptr + request * path_stride + step, mask=step < STEPS, other=0)
        moves = (step <= length) & (step < STEPS) & (node != step)
        slots_ptr += request * slots_stride
        source = tl.load(slots_ptr + node, mask=moves, other=0).to(tl.int64)
        target = tl.load(slots_ptr + step, mask=moves, other=0).to(tl.int64)
        mask = moves[:, None] & (column < width)
        rows = tl.load(base + source[:, None] * width + column, mask=mask, other=0)
        tl.debug_barrier()  # a row may be another's target
        tl.store(base + target[:, None] * width + column, rows, mask=mask)
