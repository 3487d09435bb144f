"""Requests."""

from __future__ import annotations

from sglang_ddtree.engine.seams.seam import Seam

SEAMS = (
    Seam(
        "sglang.srt.speculative.dflash_utils.validate_dflash_request",
        ("req", "enable_overlap"),
        "refuse requests that trees don't serve",
    ),
)
