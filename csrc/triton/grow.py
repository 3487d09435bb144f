"""Growing a draft tree by best-first search, one request a program, one launch a step."""

import triton
import triton.language as tl

NEG_INF = tl.constexpr(float("-inf"))


@triton.jit
def child_log_prob(
    log_probs_ptr, siblings_ptr, request, depth, candidate, rank, limit, D: tl.constexpr,
    K: tl.constexpr, CONDITIONAL: tl.constexpr,
):  # fmt: skip
    """Increment of the child of `rank` below a node at `depth`, -inf where there is none."""
    exists = (depth < limit) & (rank < K)
    at = (request * D + depth) * K + rank
    value = tl.load(log_probs_ptr + at, mask=exists, other=NEG_INF)
    if CONDITIONAL:
        at = ((request * (D - 1) + depth - 1) * K + candidate) * K + rank
        sibling = tl.load(siblings_ptr + at, mask=exists & (depth > 0), other=NEG_INF)
        value = tl.where(depth > 0, sibling, value)
    value = tl.where(value == value, value, NEG_INF)
    return tl.minimum(value, 0.0)


@triton.jit
def grow_kernel(
    tokens_ptr,
    log_probs_ptr,
    siblings_ptr,
    sibling_candidates_ptr,
    root_ptr,
    max_depth_ptr,
    out_tokens_ptr,
    out_parent_ptr,
    out_depth_ptr,
    out_ancestors_ptr,
    out_log_prob_ptr,
    out_num_nodes_ptr,
    D: tl.constexpr,
    K: tl.constexpr,
    NODES: tl.constexpr,
    SPINE: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
    LIMITED: tl.constexpr,
    CONDITIONAL: tl.constexpr,
):
    """Grid (requests,), one warp: NODES - 1 pops of the likeliest child that is not in the tree.

    Every node offers its next child only, so the frontier is one entry a node. Ties fall to the
    lesser depth, then to the earlier parent: the total order of the reference.
    """
    request = tl.program_id(0)
    limit = D
    if LIMITED:
        limit = tl.minimum(D, tl.load(max_depth_ptr + request).to(tl.int32))
    root = tl.load(root_ptr + request)

    index = tl.arange(0, BLOCK)
    word = tl.arange(0, BLOCK_WORDS)
    own = tl.where(
        index[:, None] // 64 == word, tl.full([1, 1], 1, tl.int64) << (index[:, None] % 64), 0
    )
    ancestors = own
    parent = tl.full([BLOCK], -1, tl.int32)
    depth = tl.zeros([BLOCK], tl.int32)
    candidate = tl.zeros([BLOCK], tl.int32)
    rank = tl.zeros([BLOCK], tl.int32)
    log_prob = tl.where(index == 0, 0.0, NEG_INF)
    first = child_log_prob(log_probs_ptr, siblings_ptr, request, 0, 0, 0, limit, D, K, CONDITIONAL)
    offer = tl.where(index == 0, first, NEG_INF)

    count = 1
    spine_ends = False
    for i in range(1, NODES):
        best = tl.max(offer, 0)
        # Among the likeliest offers the child at the least depth, below the earliest parent.
        order = tl.where(offer == best, depth * BLOCK + index, D * BLOCK + BLOCK)
        up = tl.min(order, 0) % BLOCK
        on_spine = SPINE and i <= D
        if on_spine:  # the chain first, likely or not: node i - 1 offers its first child
            up = i - 1
            best = tl.max(tl.where(index == up, offer, NEG_INF), 0)
            spine_ends = spine_ends | (best == NEG_INF)
        # The slots of a chain that ends early are not given to branches.
        grows = best > NEG_INF
        if on_spine:
            grows = grows & ~spine_ends
        if grows:
            at_up = index == up
            up_depth = tl.sum(tl.where(at_up, depth, 0), 0)
            up_rank = tl.sum(tl.where(at_up, rank, 0), 0)
            up_candidate = tl.sum(tl.where(at_up, candidate, 0), 0)
            up_log_prob = tl.max(tl.where(at_up, log_prob, NEG_INF), 0)
            path = tl.sum(tl.where(at_up[:, None], ancestors, 0), 0)
            chosen = up_rank
            if CONDITIONAL:
                at = ((request * (D - 1) + up_depth - 1) * K + up_candidate) * K + up_rank
                ranked = tl.load(sibling_candidates_ptr + at, mask=up_depth > 0, other=0)
                chosen = tl.where(up_depth > 0, ranked.to(tl.int32), up_rank)

            at_new = index == count
            parent = tl.where(at_new, up, parent)
            depth = tl.where(at_new, up_depth + 1, depth)
            candidate = tl.where(at_new, chosen, candidate)
            log_prob = tl.where(at_new, best, log_prob)
            ancestors = tl.where(at_new[:, None], ancestors | path[None, :], ancestors)
            rank = tl.where(at_up, up_rank + 1, rank)
            sibling = up_log_prob + child_log_prob(
                log_probs_ptr, siblings_ptr, request, up_depth, up_candidate, up_rank + 1, limit,
                D, K, CONDITIONAL,
            )  # fmt: skip
            child = best + child_log_prob(
                log_probs_ptr, siblings_ptr, request, up_depth + 1, chosen, 0, limit, D, K,
                CONDITIONAL,
            )  # fmt: skip
            offer = tl.where(at_up, sibling, tl.where(at_new, child, offer))
            count += 1

    live = (index > 0) & (index < count)
    slot = (request * D + depth - 1) * K + candidate
    token = tl.load(tokens_ptr + slot, mask=live, other=0)
    row = request * NODES + index
    stored = index < NODES
    tl.store(out_tokens_ptr + row, tl.where(live, token, root), mask=stored)
    tl.store(out_parent_ptr + row, parent, mask=stored)
    tl.store(out_depth_ptr + row, depth, mask=stored)
    tl.store(out_log_prob_ptr + row, log_prob, mask=stored)
    tl.store(
        out_ancestors_ptr + row[:, None] * WORDS + word,
        ancestors,
        mask=stored[:, None] & (word < WORDS),
    )
    tl.store(out_num_nodes_ptr + request, count)
