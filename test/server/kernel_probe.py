"""Counts the kernel launches of a server, by operation.

An SGLang plugin of the servers under test (see ``common/plugins.py``). Every process appends a line
a launch to its own file, so that nothing has to be flushed at the end.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "DDTREE_KERNEL_PROBE"
_OPS = "sglang_ddtree.ops"
LAUNCHERS = {
    "gqa": f"{_OPS}.tree_attention.triton.tree_attention_triton",
    "mla": f"{_OPS}.tree_attention.triton.mla_tree_attention_triton",
    "verify": f"{_OPS}.gdn_tree.triton.verify_triton",
    "commit": f"{_OPS}.gdn_tree.triton.commit_triton",
    "grow": f"{_OPS}.tree_build.triton.grow_triton",
    "accept": f"{_OPS}.tree_build.triton.accept_triton",
    "move": f"{_OPS}.tree_build.triton.move_path_triton",
}


def env(folder: Path) -> dict[str, str]:
    """Variables of a server whose launches are counted in an empty folder."""
    return {VARIABLE: str(folder)}


def launches(folder: Path) -> Counter[str]:
    """Launches so far, of all processes."""
    lines = [line for file in folder.glob("*.launches") for line in file.read_text().split()]
    return Counter(lines)


def register() -> None:
    """Entry point: runs in every process of a server."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for name, target in LAUNCHERS.items():
        HookRegistry.register(target, _counted(name), HookType.AROUND)


def _counted(name: str) -> Callable[..., Any]:
    def launch(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with (Path(os.environ[VARIABLE]) / f"{os.getpid()}.launches").open("a") as out:
            out.write(name + "\n")
        return result

    return launch
