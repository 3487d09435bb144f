"""Start-up: check the whole configuration, then declare what the server is sized with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_ddtree.engine.attention import selection
from sglang_ddtree.engine.config_error import stop_on
from sglang_ddtree.engine.options import MAX_TOPK, OPTIONS_ATTRIBUTE, is_asked_for, resolve_options
from sglang_ddtree.engine.startup import model_checks, server_checks
from sglang_ddtree.engine.startup.drafter_facts import load_drafter
from sglang_ddtree.engine.startup.pool import pool_problems
from sglang_ddtree.engine.startup.recurrent_checks import recurrent_problems

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

MAX_RUNNING_REQUESTS = 48  # SGLang's default under speculation


def resolve_speculative(server_args: ServerArgs, previous: Any) -> Any:
    """Wrap resolution step ``handle_speculative_decoding`` (srt/arg_groups/pipeline.py:306@0.5.23).

    Unlike ``CustomSpecAlgo.handle_server_args`` a wrapper receives the record itself, so the
    resolved options can travel with it.

    Raises:
        DDTreeConfigError: with every reason why DDTREE can't serve this configuration.
    """
    from sglang.srt.arg_groups.overrides import resolving_view

    if is_asked_for(resolving_view(server_args)):
        resolve(server_args)
    return previous(server_args)


def resolve(server_args: ServerArgs) -> None:
    """Validate ``server_args`` for DDTREE and declare the resolved fields on it."""
    from sglang.srt.arg_groups.model_override_base import model_config_of
    from sglang.srt.arg_groups.overrides import (
        attention_backends_of,
        declare_resolution,
        resolving_view,
    )

    cfg = resolving_view(server_args)
    stop_on(server_checks.server_problems(cfg))
    target = model_config_of(server_args)
    drafter = load_drafter(cfg)
    stop_on(model_checks.model_problems(target, drafter, cfg))
    # Each rank takes its own top-k of its shard of the vocabulary.
    max_topk = min(MAX_TOPK, target.vocab_size // cfg.tp_size)
    options = resolve_options(server_args, drafter.block_size, max_topk)
    stop_on(recurrent_problems(target, drafter, options, cfg))
    stop_on(pool_problems(options, cfg.max_total_tokens, cfg.page_size or 1))
    prefill, decode = attention_backends_of(cfg)
    drafting = cfg.speculative_draft_attention_backend or _tree_backend(decode)
    by_kernels, problems = selection.verdict(target, options.verify_width, cfg)
    stop_on(problems)
    if by_kernels:
        declare_resolution(
            server_args,
            "ddtree",
            prefill_attention_backend=prefill,
            decode_attention_backend=selection.NAME,
            speculative_attention_mode="decode",
        )
    setattr(server_args, OPTIONS_ATTRIBUTE, options)
    declare_resolution(
        server_args,
        "ddtree",
        speculative_num_steps=1,
        # Above 1, SGLang's recurrent kernels follow a tree's links instead of a chain.
        speculative_eagle_topk=2 if options.recurrent == "snapshot" else 1,
        speculative_num_draft_tokens=options.window,
        speculative_draft_attention_backend=drafting,
        max_running_requests=cfg.max_running_requests or MAX_RUNNING_REQUESTS,
    )


def _tree_backend(named: str) -> str:
    """A backend that runs the drafter's block, bidirectional and of its own width."""
    return named if named in selection.TREE_BACKENDS else "triton"


def register() -> None:
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook

    register_resolution_hook("handle_speculative_decoding")(resolve_speculative)
