"""Everything of SGLang that this project relies on, and whether the installed SGLang has it.

The rows are grouped by the room that needs them. A test derives the list from the package's source
and fails where a row is missing.
"""

from __future__ import annotations

import importlib.metadata

from sglang_ddtree.engine.options import ALGORITHM
from sglang_ddtree.engine.upstream.seams import (
    attention,
    cpu,
    drafting,
    recurrent,
    requests,
    startup,
    step,
    tools,
)
from sglang_ddtree.engine.upstream.seams.seam import Seam

SGLANG_VERSION = "0.5.23"
SEAMS = (
    *startup.SEAMS,
    *requests.SEAMS,
    *step.SEAMS,
    *drafting.SEAMS,
    *attention.SEAMS,
    *recurrent.SEAMS,
)
CPU_SEAMS = cpu.SEAMS
TOOL_SEAMS = tools.SEAMS


def relevant() -> tuple[Seam, ...]:
    """The rows that a server on this machine needs: the CPU's only where its platform is active."""
    from sglang_ddtree.platform import activate

    return SEAMS if activate() is None else SEAMS + CPU_SEAMS


def upstream_has_ddtree() -> bool:
    """Whether this SGLang ships an algorithm of the same name."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    return ALGORITHM in SpeculativeAlgorithm.__members__


def installed_version() -> str:
    return importlib.metadata.version("sglang")


def problems() -> list[str]:
    """Every reason why DDTREE can't run on the installed SGLang; empty when it fits."""
    found = [problem for seam in relevant() if (problem := seam.problem()) is not None]
    version = installed_version()
    if version != SGLANG_VERSION:
        found.insert(
            0,
            f"sglang {version} is installed, this release is for {SGLANG_VERSION}: "
            f"pip install sglang=={SGLANG_VERSION}",
        )
    return found
