"""Copies of a request's recurrent states, from inside a DDTREE server.

A plugin of a server under measurement (see ``common/plugins.py``). Whenever a batch of one request
was prefilled, or a step of it committed, its states go into the file that :data:`VARIABLE` names,
which keeps the latest two: the last step of an answer may commit more tokens than the answer has.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

VARIABLE = "DDTREE_STATE_PROBE"
_WORKER = "sglang_ddtree.engine.worker.DDTreeWorker"


class Seen(NamedTuple):
    """States float32 ``[layers, H, dv, dk]`` and how many tokens they have seen."""

    tokens: int
    states: torch.Tensor


def latest(file: Path, within: int) -> Seen:
    """The latest states that have seen at most ``within`` tokens."""
    return next(seen for seen in _read(file) if seen.tokens <= within)


def register() -> None:
    """Entry point."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{_WORKER}.forward_batch_generation", keep_states, HookType.AROUND)


def keep_states(
    forward: Callable[..., Any], worker: Any, batch: Any, *rest: Any, **more: Any
) -> Any:
    """Run one scheduler iteration and keep the states that it leaves."""
    lengths, prefill = batch.seq_lens.tolist(), batch.forward_mode.is_extend()
    result = forward(worker, batch, *rest, **more)
    if len(lengths) == 1:
        tokens = lengths[0] + (0 if prefill else int(result.accept_lens[0]))
        linear = worker.model_runner.attn_backend.linear_attn_backend
        slot = int(linear.forward_metadata.mamba_cache_indices[0])
        states = linear.req_to_token_pool.mamba_pool.mamba_cache.temporal[:, slot].clone()
        file = Path(os.environ[VARIABLE])
        before = [] if prefill or not file.exists() else _read(file)
        torch.save([(tokens, states), *map(tuple, before[:1])], file)
    return result


def _read(file: Path) -> list[Seen]:
    return [Seen(*pair) for pair in torch.load(file)]
