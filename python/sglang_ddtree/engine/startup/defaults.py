"""Defaults that must be in place before SGLang resolves its own."""

from __future__ import annotations

from typing import Any

from sglang_ddtree.engine.attention.selection import set_aside
from sglang_ddtree.engine.options import is_asked_for


def choose_attention_backend(server_args: Any, previous: Any) -> Any:
    """Prefer the ``triton`` attention backend on a GPU unless the user named one.

    It is the only stock backend that verifies trees, while SGLang would pick another by
    architecture. Wraps resolution step ``handle_platform_defaults``
    (srt/arg_groups/pipeline.py:214@0.5.23), which runs before the attention backend is resolved.
    Our own ``ddtree``, which is for verification only, is set aside until the model is known.
    """
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
    from sglang.srt.platforms import current_platform

    set_aside(server_args)
    result = previous(server_args)
    view = resolving_view(server_args)
    named = (
        view.attention_backend or view.prefill_attention_backend or view.decode_attention_backend
    )
    asked = is_asked_for(view)
    if asked and not named and not current_platform.is_out_of_tree():
        declare_resolution(server_args, "ddtree_defaults", attention_backend="triton")
    return result


def register() -> None:
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook

    register_resolution_hook("handle_platform_defaults")(choose_attention_backend)
