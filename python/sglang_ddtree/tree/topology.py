"""Ancestor sets as bit words: the one mask that verification and acceptance share."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

WORD_BITS = 64


def num_words(width: int) -> int:
    """Words needed for one bit a node."""
    return -(-width // WORD_BITS)


def pack_bits(bits: Tensor) -> Tensor:
    """bool [..., n] -> int64 [..., ceil(n / 64)]; bit j of word w is `bits[..., 64 * w + j]`.

    Bit 63 is the sign of its word: words are bit sets, not numbers.
    """
    n = bits.shape[-1]
    padded = functional.pad(bits, (0, num_words(n) * WORD_BITS - n))
    values = torch.where(padded.unflatten(-1, (-1, WORD_BITS)), _bit_values(bits.device), 0)
    return values.sum(-1)


def unpack_bits(words: Tensor, n: int) -> Tensor:
    """int64 [..., ceil(n / 64)] -> bool [..., n], the inverse of `pack_bits`."""
    bits = (words.unsqueeze(-1) & _bit_values(words.device)) != 0
    return bits.flatten(-2)[..., :n]


def ancestor_words(parent: Tensor, depth_bound: int | None = None) -> Tensor:
    """Ancestor sets of all nodes, the node itself included.

    parent: integer [bs, N], negative at the root and at padding, which end up with their own bit
    alone. depth_bound: an upper bound of the depth of any node, N - 1 by default.
    Returns int64 [bs, N, ceil(N / 64)].

    Pointer doubling: each round joins a node's set with that of the node where it ends, so the
    number of operations is logarithmic in the depth bound and independent of N and bs.
    """
    bs, width = parent.shape
    words = own_words(width, parent.device).expand(bs, -1, -1)
    jump = torch.where(parent < 0, node_range(width, parent.device), parent)
    for _ in range((width - 1 if depth_bound is None else depth_bound).bit_length()):
        words = words | words.gather(1, jump.unsqueeze(2).expand_as(words))
        jump = jump.gather(1, jump)
    return words


@lru_cache(maxsize=64)
def own_words(width: int, device: torch.device) -> Tensor:
    """int64 [width, ceil(width / 64)] with bit i of row i set; shared, so not to be written."""
    return pack_bits(torch.eye(width, dtype=torch.bool, device=device))


@lru_cache(maxsize=64)
def node_range(width: int, device: torch.device) -> Tensor:
    """int64 [width] of node indices; shared, so not to be written."""
    return torch.arange(width, device=device)


@lru_cache(maxsize=8)
def _bit_values(device: torch.device) -> Tensor:
    return torch.ones((), dtype=torch.int64, device=device) << node_range(WORD_BITS, device)
