"""The fault that this project exists to prevent, on purpose: siblings verified one after another.

A plugin of a server under measurement (see ``common/plugins.py``). It lets recurrent layers walk
the nodes of a tree in the order of their indices, each from the state that the node before it left.
"""

from __future__ import annotations

from typing import Any

TARGET = "sglang_ddtree.ops.gdn_tree.metadata.TreeRecurrenceMetadata.of"


def register() -> None:
    """Entry point."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, as_chain, HookType.REPLACE)


def as_chain(cls: Any, tree: Any, kernel_size: int) -> Any:
    """The paths of a chain, whatever the tree."""
    bs, width = tree.tokens.shape
    return cls.chain(bs, width, kernel_size, tree.tokens.device)
