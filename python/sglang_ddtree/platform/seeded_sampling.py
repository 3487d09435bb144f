"""The hash behind ``sampling_seed``, in torch."""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF


def murmur_hash32(
    seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor
) -> torch.Tensor:
    """MurmurHash3 (x86, 32 bits, seed 0) of every pair of a row and a column.

    The 16 bytes hashed are the row's seed and position and the column, little-endian. Replaces
    srt/../kernels/ops/sampling/murmur_hash.py:99@0.5.23, whose CPU branch needs a CPU build of
    ``sgl_kernel``.

    Args:
        seed: uint64 or int64 ``[n]``.
        positions: int ``[n]``, of the token to be drawn.
        col_indices: int ``[m]``, token ids.

    Returns:
        int64 ``[n, m]`` in ``0..2**32 - 1``.
    """
    seed = seed.view(torch.int64)[:, None]
    state = torch.zeros_like(seed)
    blocks = (seed, seed >> 32, positions.to(torch.int64)[:, None], col_indices.to(torch.int64))
    for block in blocks:
        state = _mix(state, block & _MASK)
    return _finish(state ^ 16)


def _mix(state: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    block = _rotate(block * 0xCC9E2D51 & _MASK, 15)
    state = _rotate(state ^ (block * 0x1B873593 & _MASK), 13)
    return state * 5 + 0xE6546B64 & _MASK


def _finish(state: torch.Tensor) -> torch.Tensor:
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


def _rotate(value: torch.Tensor, bits: int) -> torch.Tensor:
    return (value << bits | value >> 32 - bits) & _MASK
