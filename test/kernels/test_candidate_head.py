"""What a drafter proposes: the best of the target's head, of a shard, or of some of its tokens."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_ddtree.engine.config_error import DDTreeConfigError
from sglang_ddtree.engine.drafting.marginal_head import MarginalHead

runtime = importlib.import_module("sglang.srt.runtime_context")


def table(rows: int) -> torch.nn.Embedding:
    torch.manual_seed(0)
    return torch.nn.Embedding(rows, 16).requires_grad_(False)


def head_of(
    rank: int, size: int, embedding: Any, vocabulary: torch.Tensor | None = None, topk: int = 1
) -> Any:
    with runtime.get_parallel().override(tp_rank=rank, tp_size=size):
        return MarginalHead(embedding, vocabulary, topk).head


@pytest.mark.parametrize("chosen", [None, [0, 3, 17, 40, 55, 56, 57, 90, 100]])
def test_candidates_of_one_rank(chosen: list[int] | None) -> None:
    embedding, hidden = table(101), torch.randn(7, 16)
    vocabulary = None if chosen is None else torch.tensor(chosen)
    with runtime.get_parallel().override(tp_rank=0, tp_size=1):
        head = MarginalHead(embedding, vocabulary, topk=5)
        found = head.propose(hidden.view(1, 7, 16), torch.zeros(1, dtype=torch.int64))
    logits = hidden @ embedding.weight.T
    if chosen is not None:
        others = torch.ones(101, dtype=torch.bool)
        others[chosen] = False
        logits[:, others] = -torch.inf
    expected = logits.log_softmax(-1).topk(5)
    assert torch.equal(found.tokens[0], expected.indices)
    torch.testing.assert_close(found.log_probs[0], expected.values)
    assert found.transitions is None


@pytest.mark.parametrize(("rows", "size"), [(100, 2), (101, 2), (103, 4)])
def test_ranks_share_the_rows_of_the_table(rows: int, size: int) -> None:
    embedding = table(rows)
    heads = [head_of(rank, size, embedding) for rank in range(size)]
    assert torch.equal(torch.cat([head.weight for head in heads]), embedding.weight)
    starts = [head.shard_indices.org_vocab_start_index for head in heads]
    counts = [head.shard_indices.num_org_elements for head in heads]
    assert starts == [sum(counts[:rank]) for rank in range(size)]
    assert max(counts) - min(counts) < size


@pytest.mark.parametrize("sharded_by_sglang", [False, True])
def test_ranks_share_a_draft_vocabulary(sharded_by_sglang: bool) -> None:
    """What a rank has is a run of the vocabulary; its candidates' ids count from there."""
    embedding, vocabulary = table(100), torch.tensor([0, 9, 10, 48, 49, 50, 73, 98, 99])
    heads = []
    for rank in range(2):
        given: Any = embedding
        if sharded_by_sglang:  # with rows of padding behind
            rows = torch.cat([embedding.weight[50 * rank : 50 * (rank + 1)], torch.zeros(14, 16)])
            shard = SimpleNamespace(num_org_elements=50, org_vocab_start_index=50 * rank)
            given = SimpleNamespace(weight=rows, org_vocab_size=100, shard_indices=shard)
        heads.append(head_of(rank, 2, given, vocabulary, topk=4))
    assert torch.equal(torch.cat([head.weight for head in heads]), embedding.weight[vocabulary])
    assert [head.shard_indices.org_vocab_start_index for head in heads] == [0, 5]
    assert [head.shard_indices.num_org_elements for head in heads] == [5, 4]
    assert all(head.org_vocab_size == 9 for head in heads)


def test_a_rank_with_too_few_tokens_is_refused() -> None:
    vocabulary = torch.tensor([1, 2, 3, 4, 60])
    with pytest.raises(DDTreeConfigError, match=r"1 tokens on a rank .*-topk"):
        head_of(1, 2, table(100), vocabulary, topk=2)


def test_a_quantised_head_is_refused_with_a_draft_vocabulary() -> None:
    packed = SimpleNamespace(weight=torch.zeros(100, 8, dtype=torch.uint8), org_vocab_size=100)
    with pytest.raises(DDTreeConfigError, match="16 or 32 bits"):
        head_of(0, 1, packed, torch.tensor([1, 2, 3]))


def test_a_head_that_knows_its_vocabulary_stays_as_it_is() -> None:
    head = table(10)
    head.org_vocab_size = 10
    assert head_of(0, 1, head) is head
