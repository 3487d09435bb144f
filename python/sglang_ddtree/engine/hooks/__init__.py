"""Changes to SGLang where it has no seam: one hook a file, through SGLang's ``HookRegistry``.

Each module names the upstream function it changes in ``TARGET``.
"""

from __future__ import annotations


def register_all() -> None:
    """Queue every hook; SGLang applies them when all plugins have been loaded."""
    from sglang_ddtree.engine.hooks import (
        cli_arguments,
        draft_embeddings,
        draft_vocabulary,
        reasoning_tokens,
        recurrent_memory,
        recurrent_snapshots,
        recurrent_verify,
        request_checks,
        row_headroom,
        tree_figures,
        verify_mask,
        weight_updates,
    )

    for module in (
        cli_arguments,
        draft_embeddings,
        draft_vocabulary,
        reasoning_tokens,
        recurrent_memory,
        recurrent_snapshots,
        recurrent_verify,
        request_checks,
        row_headroom,
        tree_figures,
        verify_mask,
        weight_updates,
    ):
        module.register()
