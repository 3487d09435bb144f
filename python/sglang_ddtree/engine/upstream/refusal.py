"""A server that DDTREE can't serve ends with the reasons alone, never with a silent fallback."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from sglang_ddtree.engine.config_error import DDTreeConfigError
from sglang_ddtree.engine.options import ALGORITHM

logger = logging.getLogger(__name__)

STATUS = 2  # what argparse ends with, too
# Where SGLang checks settings: what is raised in these is said to the user.
_SETTINGS = ("sglang.srt.arg_groups.", "sglang.srt.server_args")


def stop(message: str) -> NoReturn:
    """Print a message on standard error and end with status 2."""
    print(message, file=sys.stderr, flush=True)
    raise SystemExit(STATUS)


def stop_process(message: str) -> NoReturn:
    """As :func:`stop`, for a process whose other threads would keep it alive."""
    if message:
        print(message, file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(STATUS)


def reasons(error: Exception) -> str | None:
    """What to tell the user of an error in resolving settings; ``None`` if it is a fault.

    SGLang refuses settings with assertions and ``ValueError``. They count where one of its checks
    of settings raised them itself; what comes from deeper keeps its traceback.
    """
    if isinstance(error, DDTreeConfigError):
        return str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")
    if not str(error) or not raised_in.startswith(_SETTINGS):
        return None
    return f"SGLang can't serve this configuration:\n  - {error}"


def register_refusal(problems: Sequence[str]) -> None:
    """Register a DDTREE whose only effect is to stop a server that asks for it.

    Args:
        problems: reasons, each with its fix.
    """
    message = "DDTREE can't run on this SGLang:\n" + "\n".join(f"  - {p}" for p in problems)
    logger.error(message)

    def refuse(server_args: Any) -> None:
        stop(message)

    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    register = SpeculativeAlgorithm.register(
        ALGORITHM, supports_overlap=True, validate_server_args=refuse
    )
    register(refuse)  # the worker factory is never reached
