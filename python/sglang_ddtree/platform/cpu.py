"""The CPU platform class that SGLang instantiates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import KVPoolKind, PlatformCapabilities, SRTPlatform

ATTENTION_BACKEND = "torch_tree"

# Algorithms whose device code has a torch path on this platform.
_SPECULATIVE_ALGORITHMS = frozenset({"DDTREE", "DFLASH"})


class TorchCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """Serves on the CPU with torch operations only: no Triton, no graphs, no pinned memory."""

    _enum = PlatformEnum.OOT
    capabilities = PlatformCapabilities()

    def get_device(self, device_id: int = 0) -> str:
        # Becomes ``server_args.device``, which the core splits as a string.
        return "cpu"

    def is_pin_memory_available(self, device: Any = None) -> bool:
        return False

    def init_backend(self) -> None:
        """Install the torch replacements of Triton launches; called once in each worker."""
        from sglang_ddtree.platform.hooks import (
            ignore_streams_of_host_tensors,
            leave_memory_pageable,
        )

        ignore_streams_of_host_tensors()
        leave_memory_pageable()

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Defaults of a machine without a GPU; an explicit flag wins where the CPU can honour it.

        ``server_args`` is SGLang's recording stand-in: plain assignments become declarations.
        """
        if server_args.sampling_backend is None:
            server_args.sampling_backend = "pytorch"
        if server_args.attention_backend in (None, "intel_amx"):
            # SGLang's default for a CPU is the AMX engine's backend; where that engine is absent it
            # becomes ``torch_native``, which can't verify trees.
            server_args.attention_backend = ATTENTION_BACKEND
        # An idle scheduler polls, which takes a core from whatever else runs here.
        server_args.sleep_on_idle = True
        # There is no second stream to overlap with.
        server_args.disable_overlap_schedule = True

    def get_default_attention_backend(self) -> str:
        return ATTENTION_BACKEND

    def get_default_speculative_draft_attention_backend(self, algorithm: str) -> str:
        return ATTENTION_BACKEND

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        return algorithm in _SPECULATIVE_ALGORITHMS

    def supports_speculative_draft_attention_backend(self, algorithm: str, backend: str) -> bool:
        return algorithm in _SPECULATIVE_ALGORITHMS and backend in (ATTENTION_BACKEND, "triton")

    def support_mamba_cache_extra_buffer(self) -> bool:
        # Prefill and decode copy states into the slots of the prefix cache, as on a GPU.
        return True

    def get_kv_pool_cls(self, *, kind: KVPoolKind) -> type | None:
        from sglang_ddtree.platform.kv_pool import HostMHATokenToKVPool

        return HostMHATokenToKVPool if kind == "mha" else None

    def get_speculative_cache_locs_fn(self) -> Callable[..., torch.Tensor]:
        from sglang_ddtree.platform.hooks import assign_extend_cache_locs

        return assign_extend_cache_locs

    def get_torch_profiler_activity_str(self) -> str:
        return "CPU"

    def get_torch_profiler_activity(self) -> torch.profiler.ProfilerActivity:
        """What ``/start_profile`` records beside the host's own operations: nothing more."""
        return torch.profiler.ProfilerActivity.CPU

    def get_compile_backend(self, mode: str | None = None) -> str:
        return "eager"
