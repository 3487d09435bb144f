"""What recurrent layers take of a GPU's memory, and how many requests that leaves room for."""

from __future__ import annotations

from typing import Any

import torch

from sglang_ddtree.ops.gdn_tree import RecurrentShape, Stash

GB = 1 << 30  # SGLang's


def dtype_name(dtype: torch.dtype) -> str:
    """As flags and variables spell it: ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def shape_of(params: Any) -> RecurrentShape:
    """Heads and widths on one rank.

    Args:
        params: ``Mamba2CacheParams`` of a GDN model (srt/configs/mamba_utils.py@0.5.23), whose
            convolution runs over queries, keys and values.
    """
    ((channels, window_len),) = params.shape.conv
    v_heads, v_dim, k_dim = params.shape.temporal
    return RecurrentShape(
        k_heads=(channels - v_heads * v_dim) // (2 * k_dim),
        v_heads=v_heads,
        k_dim=k_dim,
        v_dim=v_dim,
        kernel_size=window_len + 1,
    )


def stash_bytes(params: Any, width: int, dtype: torch.dtype) -> int:
    """Bytes of one request's stash: all recurrent layers of a rank, ``width`` nodes."""
    leading = (len(params.layers), 1, width)
    return Stash.allocate(shape_of(params), leading, dtype=dtype, device="meta").nbytes


def snapshot_bytes(params: Any, width: int) -> int:
    """Bytes of what the stash replaces: a state and a convolution window after every node."""
    return width * params.mamba_cache_per_req


def requests_that_fit(
    wanted: int, memory: int, state: int, stash: int, slots_per_request: int, share: float
) -> int:
    """How many requests can run at once when each needs a stash and several state slots.

    Args:
        wanted: at most this many.
        memory: bytes for states, stashes and the KV cache.
        state, stash: bytes of one slot and of one request's stash.
        slots_per_request: slots of a request, its checkpoints in the prefix cache included.
        share: of the memory left by stashes, what SGLang gives to states.
    """
    for count in range(wanted, 1, -1):
        slots = int((memory - count * stash) * share) // state - 1  # one is padding
        if slots // slots_per_request >= count:
            return count
    return 1
