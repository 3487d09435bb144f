"""Attention of draft-tree nodes over a paged prefix and their own ancestors, GQA and MLA."""

import triton
import triton.language as tl


@triton.jit
def tree_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    partial_ptr,
    partial_lse_ptr,
    arrived_ptr,
    table_ptr,
    request_row_ptr,
    prefix_len_ptr,
    ancestors_ptr,
    depth_ptr,
    qk_scale,
    v_scale,
    soft_cap,
    window,
    min_keys,
    table_stride,
    q_stride_request,
    q_stride_node,
    q_stride_head,
    k_stride_slot,
    k_stride_head,
    v_stride_slot,
    v_stride_head,
    NODES: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    ROPE: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    WORDS: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    LATENT: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
):
    """One tile of rows against one split of the keys; the last split of a tile merges all.

    Grid (row tiles, kv heads, requests * (SPLITS + 1)). Rows are nodes x heads of the group, so
    the heads of a group share each key tile. Splits 0..SPLITS-1 share the prefix, the last one is
    the tree. With LATENT the value of a key is the first DIM columns of its own key tile (MLA);
    otherwise ROPE is 0 and values come from v_ptr.
    """
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    request, split = tl.program_id(2) // (SPLITS + 1), tl.program_id(2) % (SPLITS + 1)
    in_tree = split == SPLITS

    row = tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    node, head = row // GROUP, kv_head * GROUP + row % GROUP
    row_live = node < NODES
    depth = tl.load(depth_ptr + request * NODES + node, mask=row_live, other=0)

    prefix_len = tl.load(prefix_len_ptr + request).to(tl.int32)
    first = 0
    if WINDOWED:  # nothing before it is seen, not even by the root
        first = tl.maximum(prefix_len - window, 0)
    # A split of few keys costs as much to merge as to compute: short prefixes leave some empty.
    chunk = tl.maximum(tl.cdiv(prefix_len - first, SPLITS), min_keys)
    chunk = tl.cdiv(chunk, BLOCK_KEYS) * BLOCK_KEYS
    begin = first + split * chunk
    end = tl.minimum(begin + chunk, prefix_len)
    if in_tree:
        begin = prefix_len
        end = prefix_len + NODES

    dim = tl.arange(0, BLOCK_DIM)
    v_dim = tl.arange(0, BLOCK_V)
    q_row = q_ptr + request * q_stride_request + node * q_stride_node + head * q_stride_head
    q = tl.load(q_row[:, None] + dim, mask=row_live[:, None] & (dim < DIM), other=0.0)
    q = q.to(DOT_TYPE)
    if ROPE > 0:
        rope = tl.arange(0, ROPE)
        q_rope = tl.load(q_row[:, None] + DIM + rope, mask=row_live[:, None], other=0.0)
        q_rope = q_rope.to(DOT_TYPE)

    table_row = table_ptr + tl.load(request_row_ptr + request).to(tl.int64) * table_stride
    largest = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_V], tl.float32)
    for start in range(begin, end, BLOCK_KEYS):
        position = start + tl.arange(0, BLOCK_KEYS)
        live = position < end
        # One look-up a page: the slots of a page are consecutive.
        page = tl.load(table_row + position // PAGE * PAGE, mask=live, other=0)
        slot = (page + position % PAGE).to(tl.int64)
        key = k_ptr + slot * k_stride_slot + kv_head * k_stride_head
        k = tl.load(key[:, None] + dim, mask=live[:, None] & (dim < DIM), other=0.0).to(DOT_TYPE)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if ROPE > 0:
            k_rope = tl.load(key[:, None] + DIM + rope, mask=live[:, None], other=0.0)
            scores += tl.dot(q_rope, tl.trans(k_rope.to(DOT_TYPE)), input_precision="ieee")
        scores *= qk_scale
        if CAPPED:
            scores = soft_cap * (2 * tl.sigmoid(2 * scores / soft_cap) - 1)

        other = position - prefix_len  # node of a key of the tree, negative in the prefix
        word = tl.load(
            ancestors_ptr + ((request * NODES + node) * WORDS)[:, None] + other // 64,
            mask=in_tree & row_live[:, None] & live,
            other=-1,
        )
        visible = live & (((word >> (other & 63)) & 1) != 0)
        if WINDOWED:
            other_depth = tl.load(depth_ptr + request * NODES + other, mask=in_tree & live, other=0)
            other_depth = tl.where(in_tree, other_depth, other)
            visible &= depth[:, None] - other_depth <= window
        scores = tl.where(visible, scores, float("-inf"))

        larger = tl.maximum(largest, tl.max(scores, 1))
        shift = tl.where(larger == float("-inf"), 0.0, larger)  # a row may see nothing yet
        probs = tl.exp(scores - shift[:, None])
        kept = tl.exp(largest - shift)
        if LATENT:
            v = k
        else:
            v = tl.load(
                v_ptr + slot[:, None] * v_stride_slot + kv_head * v_stride_head + v_dim,
                mask=live[:, None] & (v_dim < V_DIM),
                other=0.0,
            ).to(DOT_TYPE)
        total = total * kept + tl.sum(probs, 1)
        acc = acc * kept[:, None] + tl.dot(probs.to(DOT_TYPE), v, input_precision="ieee")
        largest = larger

    seen = total > 0
    partial_lse = tl.where(seen, largest + tl.log(tl.where(seen, total, 1.0)), float("-inf"))
    acc = acc / tl.where(seen, total, 1.0)[:, None]
    of_row = (request * NODES + node) * HEADS + head
    stored = ((request * (SPLITS + 1) + split) * NODES + node) * HEADS + head
    v_live = v_dim < V_DIM
    tl.store(partial_lse_ptr + stored, partial_lse, mask=row_live)
    tl.store(
        partial_ptr + stored.to(tl.int64)[:, None] * V_DIM + v_dim,
        acc,
        mask=(row_live & seen)[:, None] & v_live,
    )

    # The stores above are visible to whichever program counts the last arrival of this tile.
    tl.debug_barrier()
    arrived = arrived_ptr + (request * tl.num_programs(1) + kv_head) * tl.num_programs(0) + tile
    if tl.atomic_add(arrived, 1, sem="acq_rel") == SPLITS:
        tl.store(arrived, 0)  # for the next launch
        tl.debug_barrier()
        largest = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_ROWS], tl.float32)
        acc = tl.zeros([BLOCK_ROWS, BLOCK_V], tl.float32)
        for i in range(SPLITS + 1):
            stored = ((request * (SPLITS + 1) + i) * NODES + node) * HEADS + head
            # .cg: the L1 cache is not coherent between the programs that wrote these.
            part_lse = tl.load(
                partial_lse_ptr + stored, mask=row_live, other=0.0, cache_modifier=".cg"
            )
            part = tl.load(
                partial_ptr + stored.to(tl.int64)[:, None] * V_DIM + v_dim,
                mask=(row_live & (part_lse > float("-inf")))[:, None] & v_live,
                other=0.0,
                cache_modifier=".cg",
            )
            larger = tl.maximum(largest, part_lse)
            shift = tl.where(larger == float("-inf"), 0.0, larger)
            kept, weight = tl.exp(largest - shift), tl.exp(part_lse - shift)
            total = total * kept + weight
            acc = acc * kept[:, None] + part * weight[:, None]
            largest = larger
        out = (acc / total[:, None] * v_scale).to(out_ptr.dtype.element_ty)
        tl.store(
            out_ptr + of_row.to(tl.int64)[:, None] * V_DIM + v_dim,
            out,
            mask=row_live[:, None] & v_live,
        )
        tl.store(lse_ptr + of_row, largest + tl.log(total), mask=row_live)
