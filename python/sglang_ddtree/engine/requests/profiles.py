"""HTTP 400 for a profile that can't be started, stopped or written.

SGLang makes the folder of the traces when the profile ends, in the scheduler, which ends too where
that fails (srt/managers/scheduler_components/profiler_manager.py@0.5.23); a profile that is not in
progress is HTTP 500 (srt/managers/tokenizer_control_mixin.py:424@0.5.23).
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree.engine.options import is_running

TARGET = "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"


def check_folder(manager: Any, req: Any = None) -> None:
    """Make the folder for the traces, and a file in it."""
    from sglang_ddtree.engine.requests.bad_request import BadRequest

    folder = getattr(req, "output_dir", None)
    if folder is None or not is_running():
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:
        raise BadRequest(f"output_dir can't be written: {error}") from error


async def answer_failure(original: Callable[..., Awaitable[Any]], manager: Any, req: Any) -> Any:
    from sglang_ddtree.engine.requests.bad_request import BadRequest

    try:
        return await original(manager, req)
    except RuntimeError as error:
        if is_running():
            raise BadRequest(str(error)) from error
        raise


def register() -> None:
    HookRegistry.register(f"{TARGET}.start_profile", check_folder, HookType.BEFORE)
    HookRegistry.register(f"{TARGET}._execute_profile", answer_failure, HookType.AROUND)
