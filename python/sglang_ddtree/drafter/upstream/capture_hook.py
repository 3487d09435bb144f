"""In the scheduler of a capturing engine: hidden states go to files instead of into the answer.

SGLang returns a prompt's hidden states as lists of Python floats in the answer
(srt/managers/scheduler_components/batch_result_processor.py:641@0.5.23: ``tolist``), some 40 times
their size, and drops those of all chunks of a chunked prefill but the last. Here a request's rows
are collected over its chunks and written once, as one tensor. Only the way out is replaced: what is
captured is what ``--enable-return-aux-hidden-states`` captures for DFLASH.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

TARGET = (
    "sglang.srt.managers.scheduler_components.batch_result_processor."
    "SchedulerBatchResultProcessor._append_prefill_hidden_states"
)
SPOOL = "SGLANG_DDTREE_CAPTURE_SPOOL"
NAME = "hidden_states"


class Spool:
    """Collects rows by request and writes ``FOLDER/<rid>.safetensors``."""

    def __init__(self, folder: Path, writes: bool) -> None:
        self.folder, self.writes = folder, writes
        self.chunks: dict[str, list[torch.Tensor]] = {}

    def add(self, req: Any, rows: torch.Tensor, last: bool) -> None:
        """``rows [tokens, K * hidden]`` of a request's chunk; ``last`` writes all of them.

        A failure to write travels back in the answer, where hidden states would be.
        """
        chunks = self.chunks.setdefault(req.rid, [])
        chunks.append(rows.cpu())
        if not last:
            return
        from sglang_ddtree.drafter.files import write_tensors

        try:
            write_tensors(self.folder / f"{req.rid}.safetensors", {NAME: torch.cat(chunks)})
        except OSError as error:
            req.hidden_states.append([error.errno or 0])
        del self.chunks[req.rid]


def register(writes: bool) -> None:
    """Replace the method; only one rank of a group ``writes``."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    spool = Spool(Path(os.environ[SPOOL]), writes)

    def take(
        processor: Any,
        *,
        req: Any,
        logits_output: Any,
        hidden_state_offset: int,
        capture_hidden_mode: Any,
        extend_input_len: int,
        store: bool = True,
    ) -> int:
        end = hidden_state_offset + extend_input_len
        if spool.writes and req.return_hidden_states and (store or req.inflight_middle_chunks > 0):
            spool.add(req, logits_output.hidden_states[hidden_state_offset:end], store)
        return end

    HookRegistry.register(TARGET, take, HookType.REPLACE)


def run_scheduler(server_args: Any, port_args: Any, gpu_id: int, tp_rank: int, *rest: Any) -> Any:
    """``run_scheduler_process`` (srt/managers/scheduler.py:6310@0.5.23) with the hook applied."""
    from sglang.srt.managers.scheduler import run_scheduler_process

    register(writes=tp_rank == 0)
    return run_scheduler_process(server_args, port_args, gpu_id, tp_rank, *rest)
