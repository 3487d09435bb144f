"""Whether a KV pool can hold one request of the tree."""

from __future__ import annotations

from sglang_ddtree.engine.options import TreeOptions


def least_tokens(options: TreeOptions, page_size: int) -> int:
    """Slots that the shortest request holds while it decodes, in whole pages.

    Every step reserves two windows past the committed tokens, of which there is one at least
    (srt/mem_cache/allocation_sizing.py: get_alloc_reserve_per_decode@0.5.23).
    """
    return -(-(1 + 2 * options.window) // page_size) * page_size


def pool_problems(options: TreeOptions, tokens: int | None, page_size: int) -> list[str]:
    """Why no request could be served from a pool.

    Args:
        tokens: slots of the pool; None where it is not known yet.
    """
    least = least_tokens(options, page_size)
    # Slots beyond the last whole page are never given out.
    if tokens is None or tokens // page_size * page_size >= least:
        return []
    return [
        f"the KV pool of {tokens} tokens can't hold one request, which takes {least}: two windows "
        f"of {options.window} tokens ahead of it, in pages of {page_size}. Raise "
        "--max-total-tokens or --mem-fraction-static, or lower --speculative-ddtree-budget"
    ]
