"""A head that is the embedding table itself gives candidates as a sharded head does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

runtime = pytest.importorskip("sglang.srt.runtime_context")
dflash = pytest.importorskip("sglang.srt.models.dflash")
draft = pytest.importorskip("sglang_ddtree.engine.draft")


def table(rows: int) -> torch.nn.Embedding:
    torch.manual_seed(0)
    return torch.nn.Embedding(rows, 16).requires_grad_(False)


def head_of(rank: int, size: int, embedding: torch.nn.Embedding) -> Any:
    with runtime.get_parallel().override(tp_rank=rank, tp_size=size):
        return draft.candidate_head(embedding)


def test_candidates_of_one_rank() -> None:
    embedding, hidden = table(101), torch.randn(7, 16)
    with runtime.get_parallel().override(tp_rank=0, tp_size=1):
        head = draft.candidate_head(embedding)
        ids, values, partition = dflash.candidate_topk(hidden, head, 5, with_partition=True)
    logits = hidden @ embedding.weight.T
    expected = logits.topk(5)
    assert torch.equal(ids, expected.indices)
    torch.testing.assert_close(values.float(), expected.values)
    torch.testing.assert_close(partition, logits.logsumexp(-1))


@pytest.mark.parametrize(("rows", "size"), [(100, 2), (101, 2), (103, 4)])
def test_ranks_share_the_rows_of_the_table(rows: int, size: int) -> None:
    embedding = table(rows)
    heads = [head_of(rank, size, embedding) for rank in range(size)]
    assert torch.equal(torch.cat([head.weight for head in heads]), embedding.weight)
    starts = [head.shard_indices.org_vocab_start_index for head in heads]
    counts = [head.shard_indices.num_org_elements for head in heads]
    assert starts == [sum(counts[:rank]) for rank in range(size)]
    assert max(counts) - min(counts) < size


def test_a_head_that_knows_its_vocabulary_stays_as_it_is() -> None:
    head = table(10)
    head.org_vocab_size = 10
    assert head_of(0, 1, head) is head
