"""Changes to SGLang where it has no seam: one hook a file, through SGLang's ``HookRegistry``.

Each module names the upstream function it changes in ``TARGET``.
"""

from __future__ import annotations

from importlib import import_module

HOOKS = (
    "cli_arguments",
    "draft_embeddings",
    "draft_vocabulary",
    "expert_record",
    "ollama_streams",
    "orphans",
    "profile_requests",
    "answer_length",
    "recurrent_memory",
    "recurrent_snapshots",
    "recurrent_verify",
    "request_checks",
    "request_entrance",
    "row_headroom",
    "scheduler_messages",
    "session_replace",
    "startup_refusals",
    "stop_order",
    "stop_prefixes",
    "tree_figures",
    "verify_mask",
    "weight_groups",
    "weight_updates",
)


def register_all() -> None:
    """Queue every hook; SGLang applies them when all plugins have been loaded."""
    for name in HOOKS:
        import_module(f"{__name__}.{name}").register()
