"""No snapshot of the recurrent state after every node where the stash stands for it.

SGLang's own test for a server that never verifies drafts leaves both the snapshots and their
share of the memory budget out (srt/mem_cache/kv_cache_configurator.py:172@0.5.23).
"""

from __future__ import annotations

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree.engine.options import stashes

TARGET = "sglang.srt.mem_cache.kv_cache_configurator._pd_prefill_skips_mamba_spec_state"


def skip_with_stash(skips: bool) -> bool:
    return skips or stashes()


def register() -> None:
    HookRegistry.register(TARGET, skip_with_stash, HookType.AFTER)
