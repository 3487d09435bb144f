"""``--speculative-ddtree-*`` on SGLang's command line.

SGLang has no seam for a plugin's own flags: its parser is built by ``ServerArgs.add_cli_args`` and
read back by ``ServerArgs.from_cli_args``, which keeps declared fields only
(srt/server_args.py:351,446@0.5.23). The values travel on a private attribute of the record, which
survives pickling to the scheduler processes.
"""

from __future__ import annotations

import argparse
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree.engine.options import DEFAULT_TOPK, FLAGS_ATTRIBUTE, MAX_BUDGET, RECURRENT_MODES

TARGET = "sglang.srt.server_args.ServerArgs"


def add_arguments(result: Any, parser: argparse.ArgumentParser) -> None:
    """Add our group to ``parser``; runs after ``add_cli_args``."""
    group = parser.add_argument_group("DDTree speculative decoding (sglang-ddtree)")
    group.add_argument(
        "--speculative-ddtree-budget",
        type=int,
        default=None,
        help=f"Nodes of the draft tree below its root, 1 to {MAX_BUDGET}. Default: the drafter's "
        "block size minus 1, a tree no wider than the DFlash chain.",
    )
    group.add_argument(
        "--speculative-ddtree-topk",
        type=int,
        default=None,
        help=f"Candidate tokens considered at each depth. Default: {DEFAULT_TOPK}.",
    )
    group.add_argument(
        "--speculative-ddtree-spine",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="Keep the drafter's most likely chain in the tree, before best-first growth, so that "
        "a tree never accepts less than the chain.",
    )
    group.add_argument(
        "--speculative-ddtree-recurrent",
        choices=RECURRENT_MODES,
        default=RECURRENT_MODES[0],
        help="How recurrent (GDN) layers verify a tree. wy: a stash of a few vectors a node. "
        "snapshot: SGLang's Triton kernels, with a copy of the state after every node.",
    )


def keep_values(original: Any, cls: type, args: argparse.Namespace) -> Any:
    """Build the record as SGLang does, then attach our values; runs around ``from_cli_args``."""
    server_args = original(cls, args)
    flags = {
        "budget": getattr(args, "speculative_ddtree_budget", None),
        "topk": getattr(args, "speculative_ddtree_topk", None),
        "spine": getattr(args, "speculative_ddtree_spine", True),
        "recurrent": getattr(args, "speculative_ddtree_recurrent", RECURRENT_MODES[0]),
    }
    setattr(server_args, FLAGS_ATTRIBUTE, flags)
    return server_args


def register() -> None:
    HookRegistry.register(f"{TARGET}.add_cli_args", add_arguments, HookType.AFTER)
    HookRegistry.register(f"{TARGET}.from_cli_args", keep_values, HookType.AROUND)
