"""A session's ``replace`` without a request to replace starts the session anew.

SGLang means it to, but takes entries out of a dictionary while going through it, and its scheduler
ends (srt/session/session_controller.py:245@0.5.23).
"""

from __future__ import annotations

from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree.engine.options import is_running

TARGET = "sglang.srt.session.session_controller.Session.create_req"


def clear_first(session: Any, req: Any, *rest: Any, **options: Any) -> None:
    """End what the session still runs, and leave SGLang nothing to clear."""

    params = req.session_params
    if session.streaming or not params.replace or params.rid is not None:
        return
    if not is_running():
        return
    for node in session.req_nodes.values():
        node.abort()
    session.req_nodes.clear()


def register() -> None:
    HookRegistry.register(TARGET, clear_first, HookType.BEFORE)
