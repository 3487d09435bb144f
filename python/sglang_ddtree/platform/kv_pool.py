"""The paged K/V pool of the CPU platform."""

from __future__ import annotations

import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, move_kv_cache_native


class HostMHATokenToKVPool(MHATokenToKVPool):
    """``MHATokenToKVPool`` whose row moves are torch indexing instead of a Triton launch.

    Slots are token-granular at every page size: row ``i`` of layer ``l`` is ``k_buffer[l][i]`` of
    shape ``[kv_heads, head_dim]``.
    """

    def _init_kv_copy_and_warmup(self) -> None:
        # Upstream warms up a Triton kernel here (srt/mem_cache/memory_pool.py:2375@0.5.23).
        self._kv_copy_config = None

    def _move_kv_cache_impl(self, tgt_loc: torch.Tensor, src_loc: torch.Tensor) -> None:
        move_kv_cache_native(self.k_buffer, self.v_buffer, tgt_loc, src_loc)
