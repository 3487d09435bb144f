"""Which mode this process serves recurrent layers in."""

from __future__ import annotations


def stashes() -> bool:
    """Whether DDTREE runs and stashes nodes instead of keeping SGLang's snapshots."""
    from sglang.srt.runtime_context import get_server_args, get_spec

    from sglang_ddtree.engine.startup import options_of

    if get_spec().speculative_algorithm != "DDTREE":
        return False
    return options_of(get_server_args()).recurrent == "wy"
