"""Candidates against a sort of the whole vocabulary in Python."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sglang_ddtree.tree import Candidates
from unit.strategies import logits, properties


def ranked(row: Tensor) -> tuple[list[int], list[float]]:
    """Token ids, likeliest first and smaller first among equals, and their log-probabilities."""
    limit = torch.finfo(torch.float32).max
    values = [-math.inf if math.isnan(x) else min(x, limit) for x in row.tolist()]
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    top = values[order[0]]
    if top == -math.inf:
        return order, values
    partition = top + math.log(sum(math.exp(x - top) for x in values))
    return order, [values[token] - partition for token in order]


@given(st.data(), st.integers(1, 15), st.integers(1, 50))
@properties(150)
def test_from_logits_ranks_the_whole_vocabulary(
    data: st.DataObject, depths: int, topk: int
) -> None:
    values = data.draw(logits(depths))
    candidates = Candidates.from_logits(values, topk)
    assert candidates.topk == min(topk, values.shape[-1])
    for request in range(values.shape[0]):
        for depth in range(depths):
            order, log_probs = ranked(values[request, depth])
            assert candidates.tokens[request, depth].tolist() == order[: candidates.topk]
            assert candidates.log_probs[request, depth].tolist() == pytest.approx(
                log_probs[: candidates.topk], rel=1e-5, abs=1e-5
            )


def test_softmax_is_over_the_whole_vocabulary_in_float32() -> None:
    values = torch.randn(2, 3, 1000, generator=torch.Generator().manual_seed(1)).bfloat16()
    candidates = Candidates.from_logits(values, 4)
    expected = values.double().log_softmax(-1).gather(-1, candidates.tokens)
    torch.testing.assert_close(candidates.log_probs.double(), expected, rtol=0, atol=1e-5)


def test_zeros_of_both_signs_are_equal() -> None:
    candidates = Candidates.from_logits(torch.tensor([[[-1.0, -0.0, 0.0, -0.0]]]), 3)
    assert candidates.tokens.tolist() == [[[1, 2, 3]]]


@given(st.data(), st.integers(1, 5), st.integers(1, 8), st.integers(1, 4))
@properties(80)
def test_sharded_head_equals_the_whole_one(
    data: st.DataObject, depths: int, topk: int, shards: int
) -> None:
    values = data.draw(logits(depths))
    whole = Candidates.from_logits(values, topk)
    best, token_ids, start = [], [], 0
    for shard in values.nan_to_num(nan=-math.inf, neginf=-math.inf).tensor_split(shards, -1):
        if shard.shape[-1]:
            # A stable sort: the smaller of equal ids, like `from_logits`.
            top = shard.sort(dim=-1, descending=True, stable=True)
            best.append(top.values[..., :topk])
            token_ids.append(top.indices[..., :topk] + start)
        start += shard.shape[-1]
    partition = values.nan_to_num(nan=-math.inf, neginf=-math.inf).logsumexp(-1)
    gathered = Candidates.from_topk(
        torch.cat(best[::-1], -1), torch.cat(token_ids[::-1], -1).int(), partition, topk
    )
    assert torch.equal(gathered.tokens, whole.tokens)
    assert torch.equal(gathered.log_probs, whole.log_probs)


def test_partition_rounded_down_gives_no_positive_log_prob() -> None:
    values, token_ids = torch.tensor([[[2.0, math.nan]]]), torch.tensor([[[7, 9]]])
    candidates = Candidates.from_topk(values, token_ids, torch.tensor([[1.999]]))
    assert candidates.tokens.tolist() == [[[7, 9]]]
    assert candidates.log_probs.tolist() == [[[0.0, -math.inf]]]


@pytest.mark.parametrize(
    ("tokens", "log_probs", "transitions"),
    [
        ((1, 3, 2), (1, 3, 4), None),
        ((3, 2), (3, 2), None),
        ((1, 0, 2), (1, 0, 2), None),
        ((1, 3, 0), (1, 3, 0), None),
        ((1, 3, 2), (1, 3, 2), (1, 3, 2, 2)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    tokens: tuple[int, ...], log_probs: tuple[int, ...], transitions: tuple[int, ...] | None
) -> None:
    ids = torch.zeros(tokens, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"must|need"):
        Candidates(
            ids, torch.zeros(log_probs), None if transitions is None else torch.zeros(transitions)
        )


def test_other_dtypes_are_refused() -> None:
    ids, log_probs = torch.zeros(1, 3, 2, dtype=torch.int64), torch.zeros(1, 3, 2)
    for arguments in [(ids.int(), log_probs), (ids, log_probs.bfloat16())]:
        with pytest.raises(ValueError, match="int64 and log_probs float32"):
            Candidates(*arguments)
    with pytest.raises(ValueError, match="transitions must be float32"):
        Candidates(ids, log_probs, torch.zeros(1, 2, 2, 2).double())


def test_topk_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="topk must be positive"):
        Candidates.from_logits(torch.zeros(1, 2, 5), 0)
