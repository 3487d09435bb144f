"""The gated delta rule over a draft tree: verification of all nodes, and commit of one path."""

import triton
import triton.language as tl

LOG_ZERO = tl.constexpr(-1e4)  # zero after exp, yet finite
PRECISION = tl.constexpr("tf32x3")  # float32 accuracy on tensor cores: three products of parts


@triton.jit
def node_above(node, parent_ptr):
    """The node before `node` on its path; below 0 it counts back into the committed window."""
    return tl.where(
        node >= 0, tl.load(parent_ptr + node, mask=node >= 0, other=-1).to(tl.int32), node - 1
    )


@triton.jit
def conv_inputs(
    x_ptr, x_stride_node, window_ptr, node, live, has_window, channel, TAPS: tl.constexpr
):
    """[nodes, channels]: what the convolution reads at `node`, of the tree or of the window."""
    in_tree = node >= 0
    from_tree = tl.load(
        x_ptr + node[:, None] * x_stride_node + channel,
        mask=(live & in_tree)[:, None],
        other=0.0,
    )
    from_window = tl.load(
        window_ptr + channel * (TAPS - 1) + (TAPS - 1 + node)[:, None],
        mask=(live & (node < 0) & has_window)[:, None],
        other=0.0,
    )
    return tl.where(in_tree[:, None], from_tree.to(tl.float32), from_window.to(tl.float32))


@triton.jit
def tree_conv(
    x_ptr,
    x_stride_node,
    window_ptr,
    weight_ptr,
    bias_ptr,
    parent_ptr,
    node,
    live,
    has_window,
    channel,
    TAPS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
):
    """The convolution of `node` along its parents, rounded as the layer rounds it."""
    above = node
    acc = conv_inputs(
        x_ptr, x_stride_node, window_ptr, above, live, has_window, channel, TAPS
    ) * tl.load(weight_ptr + channel * TAPS + TAPS - 1).to(tl.float32)
    for back in tl.static_range(1, TAPS):
        above = tl.where(live, node_above(tl.where(live, above, -1), parent_ptr), -1)
        acc += conv_inputs(
            x_ptr, x_stride_node, window_ptr, above, live, has_window, channel, TAPS
        ) * tl.load(weight_ptr + channel * TAPS + TAPS - 1 - back).to(tl.float32)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + channel).to(tl.float32)
    if SILU:
        acc = acc * tl.sigmoid(acc)
    return acc.to(x_ptr.dtype.element_ty).to(tl.float32)


@triton.jit
def normalised(x):
    return x / tl.sqrt(tl.sum(x * x, 1) + 1e-6)[:, None]


@triton.jit
def softplus(x):
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def ancestor_bits(ancestors_ptr, node, live, other, WORDS: tl.constexpr):
    """bool [nodes, others]: `other` is on the path to `node`."""
    word = tl.load(
        ancestors_ptr + node[:, None] * WORDS + other // 64,
        mask=live[:, None] & (other // 64 < WORDS),
        other=0,
    )
    return ((word >> (other % 64)) & 1) != 0


@triton.jit
def verify_kernel(
    x_ptr,
    a_ptr,
    b_ptr,
    weight_ptr,
    bias_ptr,
    a_log_ptr,
    dt_bias_ptr,
    state_ptr,
    window_ptr,
    index_ptr,
    parent_ptr,
    ancestors_ptr,
    out_ptr,
    keys_ptr,
    updates_ptr,
    log_decay_ptr,
    inputs_ptr,
    scale,
    x_stride_request,
    x_stride_node,
    a_stride_request,
    a_stride_node,
    b_stride_request,
    b_stride_node,
    state_stride,
    window_stride,
    NODES: tl.constexpr,
    K_HEADS: tl.constexpr,
    V_HEADS: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    TAPS: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK_NODES: tl.constexpr,
    ALL_NODES: tl.constexpr,
    BLOCK_V: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
):
    """One slice of a value head over one tree. Grid (V_DIM / BLOCK_V, V_HEADS, requests).

    Reads its slice of the state once. Nodes go by in blocks: earlier blocks enter a block by
    matrix products, the block itself is solved by forward substitution.
    """
    v_block, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = V_HEADS // K_HEADS
    CHANNELS: tl.constexpr = 2 * K_HEADS * K_DIM + V_HEADS * V_DIM
    k_head = head // GROUP
    x_ptr += request * x_stride_request
    parent_ptr += request * NODES
    ancestors_ptr += request * NODES * WORDS
    index = tl.load(index_ptr + request).to(tl.int64)
    has_state = index >= 0
    window_ptr += index * window_stride

    k_dim = tl.arange(0, K_DIM)
    v_dim = v_block * BLOCK_V + tl.arange(0, BLOCK_V)
    q_channel = k_head * K_DIM + k_dim
    k_channel = K_HEADS * K_DIM + q_channel
    v_channel = 2 * K_HEADS * K_DIM + head * V_DIM + v_dim
    state = tl.load(
        state_ptr + index * state_stride + (head * V_DIM + v_dim)[:, None] * K_DIM + k_dim,
        mask=has_state,
        other=0.0,
    ).to(tl.float32)

    every = tl.arange(0, ALL_NODES)
    every_live = every < NODES
    a = tl.load(
        a_ptr + request * a_stride_request + every * a_stride_node + head,
        mask=every_live,
        other=0.0,
    ).to(tl.float32)
    rate = tl.exp(tl.load(a_log_ptr + head).to(tl.float32))
    log_decay = -rate * softplus(a + tl.load(dt_bias_ptr + head).to(tl.float32))
    log_decay = tl.maximum(log_decay, LOG_ZERO)
    if v_block == 0:
        tl.store(
            log_decay_ptr + (request * NODES + every) * V_HEADS + head, log_decay, mask=every_live
        )

    first_of_group = (v_block == 0) & (head % GROUP == 0)
    local = tl.arange(0, BLOCK_NODES)
    for start in range(0, NODES, BLOCK_NODES):
        node = start + local
        live = node < NODES
        q = tree_conv(
            x_ptr, x_stride_node, window_ptr, weight_ptr, bias_ptr, parent_ptr, node, live,
            has_state, q_channel, TAPS, HAS_BIAS, SILU,
        )  # fmt: skip
        k = tree_conv(
            x_ptr, x_stride_node, window_ptr, weight_ptr, bias_ptr, parent_ptr, node, live,
            has_state, k_channel, TAPS, HAS_BIAS, SILU,
        )  # fmt: skip
        v = tree_conv(
            x_ptr, x_stride_node, window_ptr, weight_ptr, bias_ptr, parent_ptr, node, live,
            has_state, v_channel, TAPS, HAS_BIAS, SILU,
        )  # fmt: skip
        q, k = normalised(q), normalised(k)
        stored = request * NODES + node
        if first_of_group:
            tl.store(
                keys_ptr + (stored * K_HEADS + k_head)[:, None] * K_DIM + k_dim,
                k,
                mask=live[:, None],
            )
            for part in tl.static_range(2):
                channel = q_channel if part == 0 else k_channel
                copied = tl.load(
                    x_ptr + node[:, None] * x_stride_node + channel, mask=live[:, None], other=0.0
                )
                tl.store(
                    inputs_ptr + stored[:, None] * CHANNELS + channel, copied, mask=live[:, None]
                )
        copied = tl.load(
            x_ptr + node[:, None] * x_stride_node + v_channel, mask=live[:, None], other=0.0
        )
        tl.store(inputs_ptr + stored[:, None] * CHANNELS + v_channel, copied, mask=live[:, None])

        b = tl.load(
            b_ptr + request * b_stride_request + node * b_stride_node + head, mask=live, other=0.0
        )
        beta = tl.sigmoid(b.to(tl.float32)).to(b_ptr.dtype.element_ty).to(tl.float32)

        # Sums of one sign over the path: their differences would lose the digits that matter.
        on_path = ancestor_bits(ancestors_ptr, node, live, every, WORDS)
        path_decay = tl.where(on_path, log_decay, 0.0)
        from_root = tl.exp(tl.sum(path_decay, 1))[:, None]
        out = from_root * tl.dot(q, tl.trans(state), input_precision=PRECISION)
        u = v - from_root * tl.dot(k, tl.trans(state), input_precision=PRECISION)
        for before in range(0, start, BLOCK_NODES):
            other = before + local
            other_live = other < NODES
            other_k = normalised(
                tree_conv(
                    x_ptr, x_stride_node, window_ptr, weight_ptr, bias_ptr, parent_ptr, other,
                    other_live, has_state, k_channel, TAPS, HAS_BIAS, SILU,
                )
            )  # fmt: skip
            later = (every[:, None] > other).to(tl.float32)
            decay = tl.exp(tl.dot(path_decay, later, input_precision=PRECISION))
            decay = tl.where(ancestor_bits(ancestors_ptr, node, live, other, WORDS), decay, 0.0)
            other_u = tl.load(
                updates_ptr
                + (((request * NODES + other) * V_HEADS + head) * V_DIM)[:, None]
                + v_dim,
                mask=other_live[:, None],
                other=0.0,
            )
            products = decay * tl.dot(k, tl.trans(other_k), input_precision=PRECISION)
            u -= tl.dot(products, other_u, input_precision=PRECISION)
            products = decay * tl.dot(q, tl.trans(other_k), input_precision=PRECISION)
            out += tl.dot(products, other_u, input_precision=PRECISION)

        later = (every[:, None] > node).to(tl.float32)
        decay = tl.exp(tl.dot(path_decay, later, input_precision=PRECISION))
        decay = tl.where(ancestor_bits(ancestors_ptr, node, live, node, WORDS), decay, 0.0)
        system = tl.where(local[:, None] > local, decay, 0.0) * beta[:, None]
        system *= tl.dot(k, tl.trans(k), input_precision=PRECISION)
        u *= beta[:, None]
        for i in range(BLOCK_NODES - 1):
            row = tl.sum(tl.where(local[:, None] == i, u, 0.0), 0)
            column = tl.sum(tl.where(local == i, system, 0.0), 1)
            u -= column[:, None] * row
        products = decay * tl.dot(q, tl.trans(k), input_precision=PRECISION)
        out += tl.dot(products, u, input_precision=PRECISION)

        at = ((stored * V_HEADS + head) * V_DIM)[:, None] + v_dim
        tl.store(updates_ptr + at, u, mask=live[:, None])
        tl.store(out_ptr + at, (out * scale).to(out_ptr.dtype.element_ty), mask=live[:, None])
        tl.debug_barrier()  # later blocks read these updates


@triton.jit
def commit_window(
    inputs_ptr, window_ptr, target_ptr, parent_ptr, leaf, channel, CHANNELS, TAPS: tl.constexpr
):
    """The last TAPS - 1 inputs of the path; ascending, as no column reads an earlier one."""
    for tap in tl.static_range(TAPS - 1):
        node = leaf
        for _ in tl.static_range(TAPS - 2 - tap):
            node = node_above(node, parent_ptr)
        in_tree = node >= 0
        from_tree = tl.load(inputs_ptr + node * CHANNELS + channel, mask=in_tree, other=0.0)
        from_window = tl.load(
            window_ptr + channel * (TAPS - 1) + TAPS - 1 + node, mask=node < 0, other=0.0
        )
        kept = tl.where(in_tree, from_tree.to(tl.float32), from_window.to(tl.float32))
        tl.store(target_ptr + channel * (TAPS - 1) + tap, kept.to(target_ptr.dtype.element_ty))


@triton.jit
def commit_kernel(
    keys_ptr,
    updates_ptr,
    log_decay_ptr,
    inputs_ptr,
    state_ptr,
    window_ptr,
    source_ptr,
    target_ptr,
    leaf_ptr,
    parent_ptr,
    ancestors_ptr,
    state_stride_layer,
    state_stride,
    window_stride_layer,
    window_stride,
    stash_requests,
    REQUESTS: tl.constexpr,
    NODES: tl.constexpr,
    K_HEADS: tl.constexpr,
    V_HEADS: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    TAPS: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK_NODES: tl.constexpr,
    ALL_NODES: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """State and window after one node of each request, for all layers.

    Grid (V_DIM / BLOCK_V, V_HEADS, layers * requests). A program reads all of its slice before it
    writes, so source and target may be one slot. A negative slot is not touched; leaf -1 copies.
    """
    v_block, head = tl.program_id(0), tl.program_id(1)
    layer = (tl.program_id(2) // REQUESTS).to(tl.int64)
    request = tl.program_id(2) % REQUESTS
    source = tl.load(source_ptr + request).to(tl.int64)
    target = tl.load(target_ptr + request).to(tl.int64)
    if (source >= 0) & (target >= 0):
        leaf = tl.load(leaf_ptr + request).to(tl.int32)
        GROUP: tl.constexpr = V_HEADS // K_HEADS
        CHANNELS: tl.constexpr = 2 * K_HEADS * K_DIM + V_HEADS * V_DIM
        k_head = head // GROUP
        first = (layer * stash_requests + request) * NODES  # row of the root in the stash
        parent_ptr += request * NODES
        ancestors_ptr += request * NODES * WORDS

        every = tl.arange(0, ALL_NODES)
        word = tl.load(
            ancestors_ptr + leaf * WORDS + every // 64,
            mask=(leaf >= 0) & (every < NODES),
            other=0,
        )
        on_path = ((word >> (every % 64)) & 1) != 0
        log_decay = tl.load(
            log_decay_ptr + (first + every) * V_HEADS + head, mask=on_path, other=0.0
        )

        k_dim = tl.arange(0, K_DIM)
        v_dim = v_block * BLOCK_V + tl.arange(0, BLOCK_V)
        at = (head * V_DIM + v_dim)[:, None] * K_DIM + k_dim
        state_ptr += layer * state_stride_layer
        state = tl.load(state_ptr + source * state_stride + at).to(tl.float32)
        state *= tl.exp(tl.sum(log_decay, 0))
        for start in range(0, leaf + 1, BLOCK_NODES):
            node = start + tl.arange(0, BLOCK_NODES)
            block_word = tl.load(
                ancestors_ptr + leaf * WORDS + node // 64, mask=node <= leaf, other=0
            )
            live = ((block_word >> (node % 64)) & 1) != 0
            since = tl.sum(tl.where(every > node[:, None], log_decay, 0.0), 1)
            k = tl.load(
                keys_ptr + ((first + node) * K_HEADS + k_head)[:, None] * K_DIM + k_dim,
                mask=live[:, None],
                other=0.0,
            )
            u = tl.load(
                updates_ptr + ((first + node) * V_HEADS + head)[:, None] * V_DIM + v_dim,
                mask=live[:, None],
                other=0.0,
            )
            state += tl.dot(tl.trans(u), k * tl.exp(since)[:, None], input_precision=PRECISION)
        tl.store(state_ptr + target * state_stride + at, state.to(state_ptr.dtype.element_ty))

        inputs_ptr += first * CHANNELS
        window_ptr += layer * window_stride_layer
        source_window = window_ptr + source * window_stride
        target_window = window_ptr + target * window_stride
        v_channel = 2 * K_HEADS * K_DIM + head * V_DIM + v_dim
        commit_window(
            inputs_ptr, source_window, target_window, parent_ptr, leaf, v_channel, CHANNELS, TAPS
        )
        if (v_block == 0) & (head % GROUP == 0):
            k_channel = k_head * K_DIM + k_dim
            commit_window(
                inputs_ptr, source_window, target_window, parent_ptr, leaf, k_channel, CHANNELS,
                TAPS,
            )  # fmt: skip
            k_channel += K_HEADS * K_DIM
            commit_window(
                inputs_ptr, source_window, target_window, parent_ptr, leaf, k_channel, CHANNELS,
                TAPS,
            )  # fmt: skip
