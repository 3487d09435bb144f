"""One of a server's processes ends if its launcher has died before it could be watched.

SGLang's processes have the kernel kill them when their parent dies, but ask for it some seconds
into their life, after the imports (srt/managers/scheduler.py:6269, detokenizer_manager.py:550 and
data_parallel_controller.py:940@0.5.23). A launcher killed before that leaves a scheduler that
reports its failure to whoever adopted it, and a detokenizer that waits for ever. All of them set
up their log after they have asked, and have their title by then. Acts in every server.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

TARGET = "sglang.srt.utils.common.configure_logger"
TITLE = "sglang::"


def end_if_orphaned(*_: Any, **__: Any) -> None:
    """End this process at once if it is SGLang's and whoever spawned it is not its parent."""
    from setproctitle import getproctitle

    parent = multiprocessing.parent_process()
    if parent is None or not getproctitle().startswith(TITLE):
        return
    if os.getppid() != parent.pid:
        os._exit(1)


def register() -> None:
    HookRegistry.register(TARGET, end_if_orphaned, HookType.BEFORE)
