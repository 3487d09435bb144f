"""The stash of recurrent layers in SGLang's memory budget.

SGLang divides what is left after loading the weights between recurrent states and the KV cache
(srt/mem_cache/kv_cache_configurator.py:3229@0.5.23). The stash comes off the top, and where states
are short the number of concurrent requests is settled here, so that no stash is reserved for a
request that can't run.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree.engine.options import running_options, stashes
from sglang_ddtree.engine.recurrent.memory import GB, requests_that_fit, stash_bytes

if TYPE_CHECKING:
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

TARGET = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._handle_max_mamba_cache"

logger = logging.getLogger(__name__)


def reserve_stash(
    original: Any, configurator: KVCacheConfigurator, total_rest_memory: float
) -> float:
    """Run SGLang's division on what the stash leaves; memory in GB."""
    if not stashes():
        return original(configurator, total_rest_memory)
    from sglang.srt.runtime_context import get_context, get_memory, get_schedule

    params = configurator.mambaish_config.mamba2_cache_params
    width = running_options().verify_width
    stash = stash_bytes(params, width, configurator.model_config.dtype)
    schedule = get_schedule()
    wanted = schedule.max_running_requests
    ratio = schedule.mamba_full_memory_ratio
    slots_per_request = configurator._calculate_mamba_ratio()
    if schedule.max_mamba_cache_size is not None:
        count = max(1, min(wanted, schedule.max_mamba_cache_size // slots_per_request))
    elif get_memory().disable_radix_cache:
        count = wanted
    else:
        count = requests_that_fit(
            wanted,
            int(total_rest_memory * GB),
            params.mamba_cache_per_req,
            stash,
            slots_per_request,
            ratio / (1 + ratio),
        )
    if count < wanted:
        logger.warning(
            "DDTREE: states and stash leave room for %d requests at once instead of %d. For more: "
            "lower --speculative-ddtree-budget, or raise --mem-fraction-static or "
            "--mamba-full-memory-ratio",
            count,
            wanted,
        )
        get_context().override("ddtree.stash", max_running_requests=count)
    return original(configurator, total_rest_memory - count * stash / GB)


def register() -> None:
    HookRegistry.register(TARGET, reserve_stash, HookType.AROUND)
