"""Changes to SGLang where it has no seam, through SGLang's ``HookRegistry``.

Each is a file in the room that it serves: ``TARGET`` is the upstream function that it changes, and
``register`` queues its hook.
"""

from __future__ import annotations

from importlib import import_module

ENGINE = "sglang_ddtree.engine"
HOOKS = (
    "answers.figures",
    "answers.length",
    "answers.ollama_streams",
    "answers.stop_order",
    "answers.stop_prefixes",
    "attention.graph_mask",
    "drafting.embeddings",
    "drafting.vocabulary",
    "recurrent.no_snapshots",
    "recurrent.reserve",
    "recurrent.verify_hook",
    "requests.endpoints",
    "requests.expert_record",
    "requests.profiles",
    "requests.scheduler_checks",
    "requests.scheduler_messages",
    "requests.session_replace",
    "row_headroom",
    "startup.flags",
    "startup.orphans",
    "startup.refusals",
    "weights.groups",
    "weights.updates",
)


def register_all() -> None:
    """Queue every hook; SGLang applies them when all plugins have been loaded."""
    for name in HOOKS:
        import_module(f"{ENGINE}.{name}").register()
