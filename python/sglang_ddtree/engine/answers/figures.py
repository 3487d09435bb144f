"""What the server reports of its draft is the tree's: ``speculative_num_draft_tokens`` its nodes.

SGLang sizes slots with that field, where DDTREE puts the larger of block and tree, and reports it:
drafts proposed and accept rate of an answer (srt/managers/tokenizer_manager.py:3157@0.5.23), of a
batch (srt/managers/scheduler_components/metrics_reporter.py:975@0.5.23), and in ``/server_info``
(``ServerArgs.resolved_dict``, srt/server_args.py:316@0.5.23). Here a tree that is narrower than its
block is reported as narrow as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

REPORTS = (
    "sglang.srt.managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics",
    "sglang.srt.managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter"
    ".report_decode_stats",
)
SETTINGS = "sglang.srt.server_args.ServerArgs.resolved_dict"
TARGET = (*REPORTS, SETTINGS)


def report(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Report with the tree's size in the field's place."""
    from sglang.srt.runtime_context import get_context, get_spec

    size = tree_size(get_context().server_args)
    if size is None:
        return original(*args, **kwargs)
    with get_spec().override(speculative_num_draft_tokens=size):
        return original(*args, **kwargs)


def settings(resolved: dict[str, Any], server_args: Any) -> dict[str, Any]:
    """Settings that give the same tree when they are read back."""
    size = tree_size(server_args)
    return resolved if size is None else {**resolved, "speculative_num_draft_tokens": size}


def tree_size(server_args: Any) -> int | None:
    """Nodes of a DDTREE server's trees, root included; ``None`` for another server."""
    from sglang_ddtree.engine.options import OPTIONS_ATTRIBUTE

    options = getattr(server_args, OPTIONS_ATTRIBUTE, None)
    return None if options is None else options.verify_width


def register() -> None:
    for target in REPORTS:
        HookRegistry.register(target, report, HookType.AROUND)
    HookRegistry.register(SETTINGS, settings, HookType.AFTER)
