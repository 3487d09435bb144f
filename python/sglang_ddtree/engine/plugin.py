"""Entry point of group ``sglang.srt.plugins``; runs early in every process of the server."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


def register() -> None:
    """Add the DDTREE algorithm, its flags and hooks, and the CPU platform's attention backend.

    SGLang logs and swallows a plugin's exception, so a mismatch with the installed SGLang does not
    raise here: DDTREE is registered as an algorithm that refuses to start and says why.
    """
    from sglang_ddtree.engine.upstream import seams

    if seams.upstream_has_ddtree():
        logger.warning("this SGLang has its own DDTREE; sglang-ddtree steps aside")
        return
    problems = seams.problems()
    if problems:
        from sglang_ddtree.engine.upstream.refusal import register_refusal

        register_refusal(problems)
        return

    from sglang_ddtree.engine import algorithm
    from sglang_ddtree.engine.attention import registry
    from sglang_ddtree.engine.startup import defaults, resolve
    from sglang_ddtree.engine.upstream import hooks
    from sglang_ddtree.platform import activate

    algorithm.register()
    registry.register()
    hooks.register_all()
    defaults.register()
    resolve.register()
    if activate() is not None:
        from sglang_ddtree.platform import (
            attention_registry,
            core_binding,
            gdn_backend,
            gemma,
            softcap,
            thin_linear,
        )
        from sglang_ddtree.platform import hooks as platform_hooks

        attention_registry.register()
        core_binding.register()
        gdn_backend.register()
        gemma.register()
        platform_hooks.register()
        softcap.register()
        thin_linear.register()
