"""``sglang-ddtree drafter``: from a served model to a drafter that SGLang loads."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

# Step to what its help says; each is a module here with add_arguments() and run().
STEPS = {
    "plan": "memory, disk and time of it all, before anything is started",
    "init": "a DFlash drafter's config for a target, and weights to start from",
    "generate": "prompts answered by the served target, kept as exact token ids",
    "capture": "the target's hidden states of every answer, as safetensors",
    "fit": "first weights by least squares on captured texts, before training",
    "train": "the drafter on those hidden states, with torchrun and FSDP2 where there are several",
    "export": "the trained drafter as SGLang loads it; or convert a speculators checkpoint",
    "eval": "hit rates and tokens per step on texts of the served target",
    "validate": "would SGLang serve this drafter with this target, and as trained?",
}


def add(commands: Any) -> None:
    """Add ``drafter`` and its steps to the command line."""
    parser = commands.add_parser(
        "drafter", help="make a drafter for a target: init, generate, capture, train, export, eval"
    )
    steps = parser.add_subparsers(dest="step", required=True, metavar="STEP")
    for name, text in STEPS.items():
        module = importlib.import_module(f"{__name__}.{name}")
        step = steps.add_parser(
            name,
            help=text,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(step)
        step.set_defaults(run=_runner(name, module))


def _runner(name: str, module: Any) -> Any:
    def run(args: argparse.Namespace) -> int:
        """The step's exit status; 1 with one message where the user can put it right."""
        from sglang_ddtree.drafter.errors import DrafterError, explain_os_error

        try:
            return module.run(args)
        except DrafterError as error:
            problem = error
        except OSError as error:
            problem = explain_os_error(error)
        print(f"sglang-ddtree drafter {name}: {problem}", file=sys.stderr)
        return 1

    return run
