"""One decode step: what its phases share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from sglang_ddtree.engine.options import TreeOptions

if TYPE_CHECKING:
    from sglang.srt.mem_cache.kv_loc_plan import KVLocPlan


@dataclass(frozen=True)
class Step:
    """What the phases of one decode step share.

    Attributes:
        options: shape of this step's trees.
        root_tokens: int64 ``[bs]``, last output token of each request; its KV is not written yet.
        prefix_lens: int64 ``[bs]``, committed KV lengths, so the root's position.
        slots: int64 ``[bs, W]``, KV slots of positions ``prefix_lens + 0..W-1``.
        plan: SGLang's translation of ``slots`` for every pool of this iteration.
        prefix_lens_cpu: host bound of ``prefix_lens``, int ``[bs]``.
    """

    options: TreeOptions
    root_tokens: torch.Tensor
    prefix_lens: torch.Tensor
    slots: torch.Tensor
    plan: KVLocPlan
    prefix_lens_cpu: torch.Tensor
