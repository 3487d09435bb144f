"""HTTP 400 for a group of weight receivers that can't be made or does not exist.

SGLang's scheduler ends there: a name is looked up without asking whether it is known, and what the
request says is asserted (srt/model_executor/model_runner_components/weight_exporter.py:61, 118 and
weight_updater.py@0.5.23).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree.engine.options import is_running

TARGET = "sglang.srt.managers.tp_worker.BaseTpWorker"
METHODS = (
    "init_weights_update_group",
    "destroy_weights_update_group",
    "init_weights_send_group_for_remote_instance",
    "send_weights_to_remote_instance",
)


def answer_failure(
    original: Callable[..., tuple[bool, str]], worker: Any, recv_req: Any
) -> tuple[bool, str]:
    """The result of ``original``, or that it failed and why, which SGLang answers with HTTP 400."""

    if not is_running():
        return original(worker, recv_req)
    try:
        return original(worker, recv_req)
    except (AssertionError, KeyError, IndexError, ValueError, RuntimeError) as error:
        return False, f"{original.__name__}: {type(error).__name__}: {error}"


def register() -> None:
    for method in METHODS:
        HookRegistry.register(f"{TARGET}.{method}", answer_failure, HookType.AROUND)
