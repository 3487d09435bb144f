"""Room at the end of a request's row for the slots that decoding reserves.

Every decode step reserves ``2 * speculative_num_draft_tokens`` positions past the committed length,
but at page size 1 a row of ``req_to_token`` is only ``4 + speculative_num_draft_tokens`` wider than
the context (srt/mem_cache/allocation_sizing.py: get_req_to_token_extra_context_len@0.5.23). A wide
tree near the context limit would write into the next request's row.
"""

from __future__ import annotations

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree.engine.options import is_running

TARGET = "sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len"


def reserve_in_full(extra: int) -> int:
    """Widen the row to the whole reserve, page rounding included."""
    from sglang.srt.mem_cache.allocation_sizing import (
        get_alloc_page_size,
        get_alloc_reserve_per_decode,
    )

    if not is_running():
        return extra
    return max(extra, get_alloc_reserve_per_decode() + get_alloc_page_size() - 1)


def register() -> None:
    HookRegistry.register(TARGET, reserve_in_full, HookType.AFTER)
