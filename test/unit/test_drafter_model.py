"""The drafter in torch, its loss and its batches, each against an oracle that shares no code."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from sglang_ddtree.drafter.data.samples import Likeliest, Sample, mask_of
from sglang_ddtree.drafter.errors import DrafterError
from sglang_ddtree.drafter.model.config import DrafterConfig
from sglang_ddtree.drafter.model.layers import Shape, rope_table
from sglang_ddtree.drafter.model.model import Drafter
from sglang_ddtree.drafter.objective.batches import (
    Batch,
    Source,
    collate,
    draw_anchors,
    used_tokens,
)
from sglang_ddtree.drafter.objective.losses import Teacher, Weighting, block_loss, position_weights
from sglang_ddtree.drafter.objective.objective import (
    Ends,
    block_inputs,
    block_labels,
    draft_loss,
    slot_teacher,
)
from sglang_ddtree.drafter.training.muon import Muon32
from unit.drafter_runs import randomise

SIZE = Shape(
    hidden=32,
    intermediate=48,
    layers=3,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocab=300,
    rope_theta=10_000.0,
    norm_eps=1e-6,
    max_positions=64,
)
BLOCK = 4


def config(*windows: int | None) -> DrafterConfig:
    return DrafterConfig(SIZE, BLOCK, (0, 1, 2), 3, windows)


def lone_block(model: Drafter, features: Tensor, embeds: Tensor) -> Tensor:
    """Oracle: one block after ``features [n, K * hidden]``, attention spelled out by head and row.

    A row with a window sees the keys less than ``window`` positions before it, and none after.
    """
    context = model.hidden_norm(model.fc(features))
    start, block = len(context), len(embeds)
    cos, sin = rope_table(SIZE, start + block)
    group, x = SIZE.heads // SIZE.kv_heads, embeds
    for layer in model.layers:
        attention = layer.self_attn
        normed = layer.input_layernorm(x)
        queries = attention.queries(normed, cos[start:], sin[start:])
        own = attention.keys_values(normed, cos[start:], sin[start:])
        past = attention.keys_values(context, cos[:start], sin[:start])
        heads = []
        for head in range(SIZE.heads):
            keys, values = (
                torch.cat([p[head // group], o[head // group]])
                for p, o in zip(past, own, strict=True)
            )
            rows = []
            for slot in range(block):
                position = start + slot
                first, end = 0, start + block
                if layer.window is not None:
                    first, end = max(0, position - layer.window + 1), position + 1
                scores = queries[head, slot] @ keys[first:end].T / math.sqrt(SIZE.head_dim)
                rows.append(scores.softmax(-1) @ values[first:end])
            heads.append(torch.stack(rows))
        x = layer.feed_forward(x + attention.o_proj(torch.cat(heads, dim=-1)))
    return model.norm(x)


@pytest.mark.parametrize("windows", [(None, None, None), (6, 6, None), (5, 5, 5)])
def test_blocks_see_the_context_before_their_anchor_and_themselves(
    windows: tuple[int | None, ...],
) -> None:
    model = Drafter(config(*windows))
    randomise(model, 3)
    features = torch.randn(1, 20, 3 * SIZE.hidden)
    anchors = torch.tensor([[1, 7, 7, 16]])
    embeds = torch.randn(1, 4, BLOCK, SIZE.hidden)
    batched = model(features, embeds, anchors)
    for index, anchor in enumerate(anchors[0].tolist()):
        alone = lone_block(model, features[0, :anchor], embeds[0, index])
        torch.testing.assert_close(batched[0, index], alone, rtol=1e-4, atol=1e-4)


def sum_of_products(confidences: list[float], alpha: float) -> list[float]:
    """Oracle: D-PACE weights, eq. 7 and 8 spelled out."""
    smooth = [(1 - alpha) * q + alpha for q in confidences]
    products = [math.prod(smooth[: m + 1]) for m in range(len(smooth))]
    return [sum(products[j:]) for j in range(len(smooth))]


def test_dpace_weights() -> None:
    confidences = torch.tensor([[0.9, 0.5, 0.1], [0.2, 0.8, 0.6]])
    learnt = torch.tensor([[True, True, True], [True, True, False]])
    weights = position_weights(-confidences.log(), learnt, Weighting(alpha=0.3))
    for row, count in ((0, 3), (1, 2)):
        expected = sum_of_products(confidences[row, :count].tolist(), 0.3)
        assert weights[row, :count].tolist() == pytest.approx(expected)


def test_decayed_loss_is_a_weighted_mean_of_cross_entropies() -> None:
    logits = torch.randn(2, 3, 7)
    labels = torch.tensor([[1, 2, -1], [0, 5, 6]])
    valid = torch.tensor([[True, True, True], [True, False, False]])
    loss = block_loss(logits, labels, valid, Weighting(gamma=2.0))
    counted = [(0, 0), (0, 1), (1, 0)]
    weights = [math.exp(-slot / 2.0) for _, slot in counted]
    entropies = [-logits[b, s].log_softmax(-1)[labels[b, s]].item() for b, s in counted]
    expected = sum(w * e for w, e in zip(weights, entropies, strict=True))
    assert loss.total.item() == pytest.approx(expected, rel=1e-5)
    assert loss.weight.item() == pytest.approx(sum(weights))
    assert loss.slots.tolist() == [2, 1, 1]
    best = logits.argmax(-1)
    assert loss.hits[0] == (best[0, 0] == 1).float() + (best[1, 0] == 0).float()
    assert loss.hits[2] == 0, "a token that can't be proposed is a miss"


def test_distilled_loss_is_the_cross_entropy_of_the_targets_distribution() -> None:
    logits = torch.randn(2, 3, 7, requires_grad=True)
    labels, valid = torch.randint(0, 7, (2, 3)), torch.ones(2, 3, dtype=torch.bool)
    target = torch.randn(2, 3, 7).softmax(-1)
    probs, columns = target.topk(7)
    weighting = Weighting(gamma=2.0, distil=1.0)
    loss = block_loss(logits, labels, valid, weighting, Teacher(columns, probs))
    entropies = -(target * logits.log_softmax(-1)).sum(-1)
    decay = torch.exp(-torch.arange(3) / 2.0)
    torch.testing.assert_close(loss.total, (entropies * decay).sum())
    half = block_loss(logits, labels, valid, Weighting(2.0, None, 0.5), Teacher(columns, probs))
    hard = block_loss(logits, labels, valid, Weighting(gamma=2.0))
    torch.testing.assert_close(half.total, (loss.total + hard.total) / 2)


def test_an_incomplete_distribution_has_the_same_optimum() -> None:
    target = torch.tensor([[[0.4, 0.3, 0.1, 0.1, 0.1]]])
    teacher = Teacher(torch.tensor([[[0, 1, -1]]]), torch.tensor([[[0.4, 0.3, 0.2]]]))
    best = torch.tensor([[[0.4, 0.3]]]).log().requires_grad_()
    loss = block_loss(
        best, torch.tensor([[0]]), torch.tensor([[True]]), Weighting(distil=1.0), teacher
    )
    loss.total.backward()
    assert best.grad is not None
    assert best.grad.abs().max() < 1e-6
    assert loss.total.item() == pytest.approx(
        -sum(p * math.log(p / 0.7) for p in target[0, 0, :2].tolist())
    )


def test_a_slot_is_taught_by_the_distribution_at_its_position() -> None:
    ids = [7, 9, 11, 250, 9]
    batch = text_batch(ids, [True] * 5, [0, 1])
    tokens = torch.tensor(ids, dtype=torch.int32)[None, :, None]
    batch = replace(batch, likeliest=Likeliest(tokens, torch.ones(1, 5, 1)))
    table = torch.randn(SIZE.vocab, SIZE.hidden)
    teacher = slot_teacher(batch, BLOCK, Ends(table, table, 1.0, torch.tensor([7, 9, 11])))
    assert teacher is not None
    assert teacher.columns[..., 0].tolist() == [[1, 2, -1], [2, -1, 1]]
    assert teacher.probs.shape == (2, 3, 1)


def text_batch(ids: list[int], learn: list[bool], anchors: list[int]) -> Batch:
    features = torch.randn(1, len(ids), 3 * SIZE.hidden)
    return Batch(
        torch.tensor([ids]),
        features,
        torch.tensor([learn]),
        torch.tensor([anchors]),
        torch.ones(1, len(anchors), dtype=torch.bool),
    )


def test_labels_end_with_the_targets_own_text() -> None:
    ids, learn = [5, 6, 7, 8, 9, 10], [False, False, True, True, False, True]
    tokens, valid = block_labels(text_batch(ids, learn, [1, 2, 4]), BLOCK)
    assert tokens[0, 0].tolist() == [7, 8, 9]
    assert valid[0].tolist() == [[True, True, False], [True, False, False], [True, False, False]]


def test_draft_vocabulary_restricts_the_head_only() -> None:
    table = torch.randn(SIZE.vocab, SIZE.hidden)
    model = Drafter(config(None, None, None))
    randomise(model, 4)
    batch = text_batch([7, 9, 11, 250, 9], [True] * 5, [0, 1])
    vocabulary = torch.tensor([7, 9, 11])
    restricted = draft_loss(model, Ends(table, table, 1.0, vocabulary), batch, model.config, W)
    hidden = model(
        batch.features, table[block_inputs(batch.tokens[:, :2], BLOCK, 3)], batch.anchors
    )
    logits = (hidden @ table.T)[0, :, 1:][..., vocabulary].flatten(0, 1)
    columns = torch.tensor([1, 2, -1, 2, -1, 1]).view(2, 3)
    valid = torch.ones(2, 3, dtype=torch.bool)
    expected = block_loss(logits.view(2, 3, 3), columns, valid, W)
    torch.testing.assert_close(restricted.total, expected.total)
    torch.testing.assert_close(restricted.weight, expected.weight)


W = Weighting(gamma=3.0)


def test_loss_in_pieces_is_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    table = torch.randn(SIZE.vocab, SIZE.hidden)
    model = Drafter(config(None, 5, None))
    randomise(model, 5)
    batch = text_batch(list(range(10, 30)), [True] * 20, [1, 4, 9, 12, 15])
    gradients = []
    for limit in (2**28, 2 * SIZE.vocab * (BLOCK - 1)):
        monkeypatch.setattr("sglang_ddtree.drafter.objective.objective._LOGITS", limit)
        model.zero_grad()
        loss = draft_loss(model, Ends(table, table), batch, model.config, W)
        (loss.total / loss.weight).backward()
        gradients.append(model.fc.weight.grad.clone())
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


def test_used_tokens() -> None:
    texts = [np.array([3, 3, 9]), np.array([3, 4, 4, 20])]
    assert used_tokens(texts, None).tolist() == [3, 4, 9, 20]
    assert used_tokens(texts, 2).tolist() == [3, 4]


def test_anchors_stand_before_the_targets_tokens() -> None:
    learn = np.array([False, False, True, True, False, True])
    rng = np.random.default_rng(0)
    assert draw_anchors(learn, 9, rng).tolist() == [1, 2, 4]
    assert len(set(draw_anchors(learn, 2, rng).tolist())) == 2


def sample(index: int) -> Sample:
    length = 8 + index
    states = torch.full((length, 6), float(index))
    return Sample(torch.full((length,), index), mask_of(length, 3), states)


def source(rank: int = 0, world: int = 1, per_step: int = 4) -> Source:
    return Source(lambda chosen: [sample(i) for i in chosen], 10, per_step, 5, 7, rank, world)


def test_every_text_is_seen_once_an_epoch_whoever_reads_it() -> None:
    alone = [source().indices(step) for step in range(5)]
    epochs = [pair for step in alone for pair in step]
    assert sorted(text for epoch, text in epochs if epoch == 0) == list(range(10))
    assert sorted(text for epoch, text in epochs if epoch == 1) == list(range(10))
    assert [t for e, t in epochs if e == 0] != [t for e, t in epochs if e == 1]
    for step in range(5):
        shared = [source(rank, 2).indices(step) for rank in (0, 1)]
        assert sorted(shared[0] + shared[1]) == sorted(alone[step])
    batch, again = source()(2), source()(2)
    assert torch.equal(batch.anchors, again.anchors)
    halves = [source(rank, 2)(2) for rank in (0, 1)]
    rows = sorted(row.tolist() for half in halves for row in half.anchors)
    assert rows == sorted(row.tolist() for row in batch.anchors)
    with pytest.raises(DrafterError, match="--batch 3"):
        source(0, 2, per_step=3)


def test_short_texts_are_padded() -> None:
    batch = collate([sample(0), sample(5)], [np.array([3]), np.array([2, 4, 5])], 3)
    assert batch.tokens.shape == (2, 13)
    assert not batch.learn[0, 8:].any()
    assert batch.used.tolist() == [[True, False, False], [True, True, True]]


def test_float32_muon_steps_as_torch_does() -> None:
    generator = torch.Generator().manual_seed(7)
    for shape in ((24, 40), (40, 24)):
        start = torch.randn(shape, generator=generator)
        ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
        pair = Muon32([ours], lr=0.1), torch.optim.Muon([theirs], lr=0.1, weight_decay=0.01)
        for _ in range(3):
            ours.grad = torch.randn(shape, generator=generator)
            theirs.grad = ours.grad.clone()
            for optimizer in pair:
                optimizer.step()
        moved = (ours - start).norm()
        assert (ours - theirs).norm() < 0.02 * moved
