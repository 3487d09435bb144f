"""The head of plain DFlash drafters: each depth's tokens by the target's own head."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch
from sglang.srt.models.dflash import candidate_topk
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.dflash_utils import is_dense_head_weight

from sglang_ddtree.dflash.checkpoint import DRAFT_VOCABULARY
from sglang_ddtree.engine.config_error import DDTreeConfigError
from sglang_ddtree.tree import Candidates


class MarginalHead:
    """The target's head over the drafter's states, one marginal distribution per depth.

    Args:
        lm_head: the target's head, or the embedding table where they are one.
        vocabulary: int64 ``[n]``, ascending: the only tokens to propose; ``None`` for all. The
            target still verifies over its whole vocabulary.
        topk: ``K``, candidates per depth; each rank gives so many.

    Raises:
        DDTreeConfigError: the vocabulary can't be taken from this head.
    """

    def __init__(
        self, lm_head: torch.nn.Module, vocabulary: torch.Tensor | None, topk: int
    ) -> None:
        self.head = whole_head(lm_head)
        self.topk = topk
        self._vocabulary = None
        if vocabulary is not None:
            self.head = reduced_head(self.head, vocabulary, topk)
            self._vocabulary = vocabulary.to(self.head.weight.device)

    def propose(self, hidden: torch.Tensor, roots: torch.Tensor) -> Candidates:
        """The likeliest tokens of each depth; see ``DraftHead.propose``."""
        bs, depths = hidden.shape[:2]
        token_ids, values, log_partition = candidate_topk(
            hidden.reshape(bs * depths, -1), self.head, self.topk, with_partition=True
        )
        assert log_partition is not None
        if self._vocabulary is not None:
            token_ids = self._vocabulary[token_ids]
        shape = (bs, depths, self.topk)
        return Candidates.from_topk(
            values.view(shape), token_ids.view(shape), log_partition.view(bs, depths)
        )


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
