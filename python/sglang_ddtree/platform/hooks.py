"""Torch versions of the small Triton launches that the scheduler makes around a forward."""

from __future__ import annotations

from typing import Any

import torch


def assign_extend_cache_locs(
    *,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
    device: torch.device | str,
) -> torch.Tensor:
    """KV slots of a fixed window of each request.

    Args:
        req_pool_indices: int ``[bs]``, row of each request in ``req_to_token``.
        req_to_token: int32 ``[rows, row_width]``, slot of every position.
        start_offset: int ``[bs]``, first position of the window; its width is ``draft_token_num``.

    Returns:
        int64 ``[bs * draft_token_num]``, request-major.

    Follows srt/../kernels/ops/speculative/cache_locs.py:679@0.5.23.
    """
    window = torch.arange(draft_token_num, device=device)
    positions = start_offset.to(torch.int64)[:, None] + window
    return req_to_token[req_pool_indices.to(torch.int64)[:, None], positions].flatten().long()


def assign_req_to_token_pool(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    batch_size: int,
) -> None:
    """Write freshly allocated slots into the rows of ``req_to_token``, in place.

    Request ``b`` receives the next ``end_offset[b] - start_offset[b]`` entries of
    ``out_cache_loc`` at positions ``start_offset[b]..end_offset[b]``. Replaces the Triton launch of
    srt/mem_cache/allocation.py:737@0.5.23, which has no out-of-tree branch.
    """
    start = start_offset.to(torch.int64)
    lengths = end_offset.to(torch.int64) - start
    rows = torch.repeat_interleave(req_pool_indices.to(torch.int64), lengths)
    first = torch.cumsum(lengths, 0) - lengths
    offsets = torch.arange(rows.numel(), device=rows.device)
    positions = offsets + torch.repeat_interleave(start - first, lengths)
    req_to_token[rows, positions] = out_cache_loc[: rows.numel()].to(req_to_token.dtype)


def ignore_streams_of_host_tensors() -> None:
    """Make ``Tensor.record_stream`` a no-op for CPU tensors, which belong to no stream.

    Stock DFLASH calls it on the sequence lengths in every step
    (srt/speculative/dflash_worker_v2.py:2482@0.5.23); torch raises for a CPU tensor.
    """
    record_stream = torch.Tensor.record_stream
    if getattr(record_stream, "_ignores_host_tensors", False):
        return

    def record_device_stream(self: torch.Tensor, stream: Any) -> None:
        if self.device.type != "cpu":
            record_stream(self, stream)

    record_device_stream._ignores_host_tensors = True  # type: ignore[attr-defined]
    torch.Tensor.record_stream = record_device_stream  # type: ignore[method-assign,assignment]


def leave_memory_pageable() -> None:
    """Make ``Tensor.pin_memory`` return the tensor itself: there is no device to copy to.

    The scheduler pins the checkpoint mask of a hybrid model in every decode step
    (srt/managers/schedule_batch.py:3826@0.5.23); torch raises where there is no accelerator.
    """

    def stay(self: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return self

    torch.Tensor.pin_memory = stay  # type: ignore[method-assign,assignment]


def keep_torch_matmul(runner: Any) -> None:
    """Leave matrix products to torch under ``--enable-deterministic-inference``.

    Replaces ``maybe_enable_batch_invariant_mode``, the switch to batch-invariant Triton kernels
    (srt/model_executor/model_runner.py:843@0.5.23), which needs an accelerator. Seeds are honoured;
    rounding may still differ in the last bits with the shape of a batch.
    """


def keep_head_counts(model_config: Any, load_config: Any, tp_size: int) -> Any:
    """Shard heads as on a GPU: a KV head is repeated where there are more ranks than KV heads.

    Replaces the padding for SGLang's own CPU engine
    (srt/model_executor/model_runner.py:1302@0.5.23), whose layers load padded weights; those of an
    out-of-tree platform do not.
    """
    return model_config


def register() -> None:
    """Queue the hooks that SGLang applies once all plugins are loaded."""
    from sglang.srt.mem_cache.allocation import get_last_loc_torch
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from sglang_ddtree.platform.draft_ops import table_qk_norm_rope_
    from sglang_ddtree.platform.seeded_sampling import murmur_hash32

    for target, replacement in {
        "sglang.srt.mem_cache.allocation.assign_req_to_token_pool_func": assign_req_to_token_pool,
        # The last slot of a request, which a paged allocator goes on from.
        "sglang.srt.mem_cache.allocation.get_last_loc": get_last_loc_torch,
        "sglang.kernels.ops.sampling.murmur_hash.murmur_hash32": murmur_hash32,
        "sglang.kernels.ops.attention.table_qk_norm_rope.table_qk_norm_rope_": table_qk_norm_rope_,
        "sglang.srt.model_executor.model_runner.ModelRunner.maybe_enable_batch_invariant_mode": (
            keep_torch_matmul
        ),
        "sglang.srt.model_executor.model_runner.adjust_config_with_unaligned_cpu_tp": (
            keep_head_counts
        ),
    }.items():
        HookRegistry.register(target, replacement, HookType.REPLACE)
