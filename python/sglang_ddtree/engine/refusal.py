"""DDTREE on an SGLang it does not fit: a hard stop with all reasons, never a silent fallback."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

logger = logging.getLogger(__name__)


def register_refusal(problems: Sequence[str]) -> None:
    """Register a DDTREE whose only effect is to stop a server that asks for it.

    Args:
        problems: reasons, each with its fix.
    """
    message = "DDTREE can't run on this SGLang:\n" + "\n".join(f"  - {p}" for p in problems)
    logger.error(message)

    def refuse(server_args: Any) -> None:
        raise SystemExit(message)

    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    register = SpeculativeAlgorithm.register(
        "DDTREE", supports_overlap=True, validate_server_args=refuse
    )
    register(refuse)  # the worker factory is never reached
