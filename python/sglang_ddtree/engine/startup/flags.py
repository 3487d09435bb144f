"""``--speculative-ddtree-*`` on SGLang's command line.

SGLang has no seam for a plugin's own flags: its parser is built by ``ServerArgs.add_cli_args`` and
read back by ``ServerArgs.from_cli_args``, which keeps declared fields only
(srt/server_args.py:351,446@0.5.23). The values travel on a private attribute of the record, which
survives pickling to the scheduler processes.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree.engine.options import FLAGS_ATTRIBUTE, TreeFlags

TARGET = "sglang.srt.server_args.ServerArgs"


def add_arguments(result: Any, parser: argparse.ArgumentParser) -> None:
    """Add our group to ``parser``; runs after ``add_cli_args``."""
    group = parser.add_argument_group("DDTree speculative decoding (sglang-ddtree)")
    for flag in fields(TreeFlags):
        name = f"--speculative-ddtree-{flag.name}"
        group.add_argument(name, default=flag.default, **flag.metadata)


def keep_values(original: Any, cls: type, args: argparse.Namespace) -> Any:
    """Build the record as SGLang does, then attach our values; runs around ``from_cli_args``."""
    server_args = original(cls, args)
    given: dict[str, Any] = {
        field.name: getattr(args, f"speculative_ddtree_{field.name}", field.default)
        for field in fields(TreeFlags)
    }
    setattr(server_args, FLAGS_ATTRIBUTE, TreeFlags(**given))
    return server_args


def register() -> None:
    HookRegistry.register(f"{TARGET}.add_cli_args", add_arguments, HookType.AFTER)
    HookRegistry.register(f"{TARGET}.from_cli_args", keep_values, HookType.AROUND)
