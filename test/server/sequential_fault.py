"""The fault that this project exists to prevent, on purpose: siblings verified one after another.

Installed as an SGLang plugin of a server under test, it lets recurrent layers walk the nodes of a
tree in the order of their indices, each from the state that the node before it left.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

TARGET = "sglang_ddtree.ops.gdn_tree.metadata.TreeRecurrenceMetadata.of"


def install(folder: Path) -> None:
    """Make ``folder``, put on a server's ``PYTHONPATH``, announce :func:`register` to SGLang."""
    info = folder / "sequential_fault-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sequential-fault\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nsequential_fault = server.sequential_fault:register\n"
    )


def register() -> None:
    """Entry point: runs in every process of a server."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, as_chain, HookType.REPLACE)


def as_chain(cls: Any, tree: Any, kernel_size: int) -> Any:
    """The paths of a chain, whatever the tree."""
    bs, width = tree.tokens.shape
    return cls.chain(bs, width, kernel_size, tree.tokens.device)
