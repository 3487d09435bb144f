"""The batch of the drafter's forward over one block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
    enable_num_token_non_padded,
)
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from sglang_ddtree.engine.step import Step

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.speculative.dflash_info import DFlashVerifyInput


def draft_block_batch(
    batch: ScheduleBatch,
    step: Step,
    block_ids: torch.Tensor,
    embeds: torch.Tensor,
    positions: torch.Tensor,
    spec_info: DFlashVerifyInput,
) -> ForwardBatch:
    """The batch of a draft forward, as DFLASH lays it out.

    The block's slots are bound by the caller (``KVLocPlan.bind``). Follows
    srt/speculative/dflash_worker_v2.py:2662@0.5.23.

    Args:
        block_ids: int64 ``[bs, B]``, the root's token and ``B - 1`` masks.
        embeds: ``[bs, B, hidden]``, their embeddings in the target's table.
        positions: int64 ``[bs, B]``.
    """
    bs, block = block_ids.shape
    seq_lens_cpu = step.prefix_lens_cpu + block
    padding_mask = (
        torch.full((), bs * block, dtype=torch.int32, device=block_ids.device)
        if enable_num_token_non_padded()
        else None
    )
    return ForwardBatch(
        forward_mode=ForwardMode.TARGET_VERIFY,
        batch_size=bs,
        input_ids=block_ids.flatten(),
        req_pool_indices=batch.req_pool_indices,
        seq_lens=step.prefix_lens,
        out_cache_loc=None,
        seq_lens_sum=int(seq_lens_cpu.sum()),
        seq_lens_cpu=seq_lens_cpu,
        positions=positions.flatten(),
        input_embeds=embeds.view(bs * block, -1),
        spec_algorithm=SpeculativeAlgorithm.DFLASH,
        spec_info=spec_info,
        capture_hidden_mode=CaptureHiddenMode.NULL,
        num_token_non_padded=padding_mask,
        global_num_token_non_padded_cpu=bs * block,
        can_run_decode_cuda_graph=batch.can_run_decode_cuda_graph,
    )
