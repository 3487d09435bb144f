"""The hash of seeded sampling against MurmurHash3 in plain Python."""

from __future__ import annotations

import struct

import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_ddtree.platform.seeded_sampling import murmur_hash32
from unit.strategies import properties


def murmur3(data: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0, for whole blocks of four bytes."""
    h = 0
    for (k,) in struct.iter_unpack("<I", data):
        k = k * 0xCC9E2D51 % 2**32
        k = (k * 2**15 + k // 2**17) % 2**32 * 0x1B873593 % 2**32
        h ^= k
        h = (h * 2**13 + h // 2**19) % 2**32 * 5 + 0xE6546B64
        h %= 2**32
    h ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ h // 2**shift) * factor % 2**32
    return h ^ h // 2**16


def test_published_vectors() -> None:
    """Of the algorithm itself, so that the oracle is right."""
    assert murmur3(b"") == 0
    assert murmur3(b"test") == 0xBA6BD213
    assert murmur3(b"\x21\x43\x65\x87") == 0xF55B516B
    assert murmur3(b"\xff\xff\xff\xff") == 0x76293B50


@given(
    seeds=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4),
    position=st.integers(0, 2**31 - 1),
    column=st.integers(0, 2**20),
)
@properties(60)
def test_rows_and_columns(seeds: list[int], position: int, column: int) -> None:
    positions = [position + i for i in range(len(seeds))]
    columns = [column, column + 1, 0]
    hashed = murmur_hash32(
        torch.tensor(seeds).view(torch.uint64), torch.tensor(positions), torch.tensor(columns)
    )
    assert hashed.tolist() == [
        [murmur3(struct.pack("<qII", seed, where, column)) for column in columns]
        for seed, where in zip(seeds, positions, strict=True)
    ]
