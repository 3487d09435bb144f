"""The drafter's forward over one block, and the head that turns it into candidates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
    enable_num_token_non_padded,
)
from sglang.srt.models.dflash import candidate_topk
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.dflash_utils import is_dense_head_weight
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from sglang_ddtree.dflash.checkpoint import DRAFT_VOCABULARY
from sglang_ddtree.engine.options import DDTreeConfigError
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


class CandidateHead:
    """What candidates of a depth are drawn from: the target's head, or its rows for some tokens.

    Args:
        lm_head: the target's head, or the embedding table where they are one.
        vocabulary: int64 ``[n]``, ascending: the only tokens to propose; ``None`` for all. The
            target still verifies over its whole vocabulary.
        topk: candidates that each rank must be able to give.

    Raises:
        DDTreeConfigError: the vocabulary can't be taken from this head.
    """

    def __init__(
        self, lm_head: torch.nn.Module, vocabulary: torch.Tensor | None, topk: int
    ) -> None:
        self.head = whole_head(lm_head)
        self._vocabulary = None
        if vocabulary is not None:
            self.head = reduced_head(self.head, vocabulary, topk)
            self._vocabulary = vocabulary.to(self.head.weight.device)

    def candidates(
        self, hidden: torch.Tensor, k: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Token ids int64 ``[n, k]``, their logits ``[n, k]`` and the log-partition ``[n]``.

        Args:
            hidden: ``[n, hidden]``, the drafter's last states.
        """
        ids, logits, log_partition = candidate_topk(hidden, self.head, k, with_partition=True)
        assert log_partition is not None
        if self._vocabulary is not None:
            ids = self._vocabulary[ids]
        return ids, logits, log_partition


def whole_head(lm_head: torch.nn.Module) -> Any:
    """The target's head as ``candidate_topk`` (srt/models/dflash.py:98@0.5.23) takes it.

    A head that is the embedding table itself, as Gemma-4's, is whole on every rank and knows no
    shards; each rank is given an equal part of its rows, as with a sharded head.
    """
    if hasattr(lm_head, "org_vocab_size"):
        return lm_head
    parallel = get_parallel()
    table = cast("torch.Tensor", lm_head.weight)
    vocab_size = table.shape[0]
    rows = -(-vocab_size // parallel.tp_size)
    start = min(parallel.tp_rank * rows, vocab_size)
    return _shard(table[start : start + rows], start, vocab_size)


def reduced_head(head: Any, vocabulary: torch.Tensor, topk: int) -> Any:
    """The rows of a head for the tokens of ``vocabulary``, which count as its whole vocabulary."""
    weight: Any = getattr(head, "weight", None)
    if not is_dense_head_weight(weight):
        raise DDTreeConfigError(
            "the drafter has a draft vocabulary, which takes a target head in 16 or 32 bits: "
            f"export it without one ({DRAFT_VOCABULARY}), or serve the target's head unquantised"
        )
    vocabulary = vocabulary.to(weight.device)
    start, rows = 0, int(head.org_vocab_size)
    if get_parallel().tp_size > 1:
        start = int(head.shard_indices.org_vocab_start_index)
        rows = int(head.shard_indices.num_org_elements)
    here = (vocabulary >= start) & (vocabulary < start + rows)
    count, before = int(here.sum()), int((vocabulary < start).sum())
    if count < topk:
        raise DDTreeConfigError(
            f"the drafter's draft vocabulary has {count} tokens on a rank of the target's head: "
            f"lower --speculative-ddtree-topk to that (got {topk})"
        )
    return _shard(weight[vocabulary[here] - start], before, len(vocabulary))


def _shard(weight: torch.Tensor, start: int, vocab_size: int) -> SimpleNamespace:
    indices = SimpleNamespace(num_org_elements=weight.shape[0], org_vocab_start_index=start)
    return SimpleNamespace(weight=weight, org_vocab_size=vocab_size, shard_indices=indices)
