"""Requests."""

from __future__ import annotations

from sglang_ddtree.engine.seams.seam import Seam

SEAMS = (
    Seam(
        "sglang.srt.speculative.dflash_utils.validate_dflash_request",
        ("req", "enable_overlap"),
        "refuse requests that trees don't serve",
    ),
    Seam(
        "sglang.srt.entrypoints.engine._scheduler_died_error",
        ("rank", "proc"),
        "end a launcher whose scheduler refused",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2._validate_phase1_sampling_support",
        ("batch",),
        "keep back a warning about chains",
    ),
)
