"""The target's token at every node, drawn by SGLang's own sampler."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo


def repeat_rows(sampling_info: SamplingBatchInfo, times: int) -> SamplingBatchInfo:
    """Per-node sampling parameters: every row of ``sampling_info`` repeated ``times`` times."""

    def rows(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.repeat_interleave(times, dim=0)

    return dataclasses.replace(
        sampling_info,
        temperatures=rows(sampling_info.temperatures),
        top_ps=rows(sampling_info.top_ps),
        top_ks=rows(sampling_info.top_ks),
        min_ps=rows(sampling_info.min_ps),
        sampling_seed=rows(sampling_info.sampling_seed),
    )
