"""``sglang-ddtree``: look at an installation, plan a machine, launch on it, make a drafter."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from sglang_ddtree.cluster.commands import launch as launch_command
from sglang_ddtree.cluster.commands import plan as plan_command
from sglang_ddtree.cluster.commands import probe as probe_command
from sglang_ddtree.drafter import commands as drafter_commands


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit status."""
    parser = argparse.ArgumentParser(prog="sglang-ddtree", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check",
        help="versions, platform, upstream seams and kernels; exit 1 with all reasons if "
        "something does not fit",
    )
    check.add_argument("--all", action="store_true", help="list seams that fit, too")
    check.set_defaults(run=_check)
    plan_command.add(commands)
    launch_command.add(commands)
    probe_command.add(commands)
    drafter_commands.add(commands)
    args = parser.parse_args(argv)
    return args.run(args)


def _check(args: argparse.Namespace) -> int:
    from sglang_ddtree.engine.upstream.report import report

    return report(show_all=args.all)


if __name__ == "__main__":
    raise SystemExit(main())
