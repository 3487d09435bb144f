"""Moving the KV rows of an accepted path to the front of the tree's slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from torch import Tensor

from sglang_ddtree.ops.dispatch import Choice
from sglang_ddtree.platform.kv_pool import HostMHATokenToKVPool

if TYPE_CHECKING:
    from sglang.srt.mem_cache.memory_pool import KVCache

    from sglang_ddtree.tree import Acceptance

# Pools whose rows are plain: no scales, no index beside them, a row a slot.
_HEADS = (MHATokenToKVPool, HostMHATokenToKVPool)
Translate = Callable[[Tensor], Tensor] | None


class KVRows:
    """The KV pool of the target, as commit sees it.

    Args:
        choice: of the dispatch table. A pool of unknown layout is left to its own
            ``move_kv_cache`` whatever is chosen; ``choice`` then says so.
    """

    def __init__(self, pool: KVCache, choice: Choice) -> None:
        self._pool = pool
        self.choice = choice
        self._parts: list[tuple[Any, Translate]] = []
        if choice.kernel == "sglang":
            return
        parts = [(_buffers(part), translate) for part, translate in _parts(pool)]
        if any(buffers is None for buffers, _ in parts):
            reason = f"{choice.kernel}: rows of a {type(pool).__name__}"
            self.choice = replace(choice, kernel="sglang", passed_over=(reason,))
            return
        from sglang_ddtree.ops.tree_build.triton import PoolRows

        self._move = choice.load()
        self._parts = [(PoolRows.of(buffers), translate) for buffers, translate in parts if buffers]

    def commit(self, slots: Tensor, accepted: Acceptance) -> None:
        """Move the row of the j-th accepted node to the j-th slot of its request.

        ``path[:, j] >= j``, so rows only move towards the root. SGLang's own move takes rows past
        the accepted length along: they land in reserved slots that the next step overwrites.

        Args:
            slots: int64 ``[bs, W]``, of the nodes in node order.
        """
        for rows, translate in self._parts:
            self._move(rows, accepted, slots if translate is None else translate(slots))
        if not self._parts:
            path = accepted.path
            source, target = slots.gather(1, path), slots[:, : path.shape[1]]
            self._pool.move_kv_cache(target.reshape(-1), source.reshape(-1))


def _parts(pool: KVCache) -> list[tuple[KVCache, Translate]]:
    """Pools of one layout, each with what translates slots to its own."""
    if isinstance(pool, SWAKVPool):
        return [
            (pool.full_kv_pool, None),
            (pool.swa_kv_pool, pool.translate_loc_from_full_to_swa),
        ]
    return [(getattr(pool, "full_kv_pool", pool), None)]  # of a hybrid model's attention layers


def _buffers(pool: KVCache) -> list[Tensor] | None:
    """Rows of all layers, ``None`` for a pool of unknown layout."""
    if type(pool) is MLATokenToKVPool:
        buffers = list(pool.kv_buffer)
    elif type(pool) in _HEADS:
        buffers = [*pool.k_buffer, *pool.v_buffer]
    else:
        return None
    return buffers if all(buffer.is_contiguous() for buffer in buffers) else None
