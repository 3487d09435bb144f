"""A tree needs its mask where a chain does not.

``resolve_dflash_verify_mask_policy`` lets backends with a built-in causal path skip the custom mask
of a DFLASH verify (srt/speculative/dflash_utils.py:178@0.5.23). Graphs captured that way would
verify a tree as a chain.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree.engine.options import is_running

TARGET = "sglang.srt.speculative.dflash_utils.resolve_dflash_verify_mask_policy"


def always_mask_trees(policy: tuple[str, bool], attn_backend: Any) -> tuple[str, bool]:
    """Keep the backend's name; build the mask under DDTREE unless the backend reads the tree."""
    from sglang_ddtree.engine.attention.registry import reads_tree

    if not is_running():
        return policy
    return policy[0], not reads_tree(attn_backend)


def register() -> None:
    HookRegistry.register(TARGET, always_mask_trees, HookType.AFTER)
