"""The drafter's loss: cross-entropy of a block's slots, weighted by position.

Decay: ``exp(-(k - 1) / gamma)`` for slot k (DFlash, arXiv 2602.06036). D-PACE (arXiv 2605.18810):
weights from the drafter's own confidence, so that a slot counts as much as it contributes to the
expected accepted length. Distillation: a share of the loss is the cross-entropy against the
target's own distribution at the slot's position, which tells more of it than the one token that
the text happens to have there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Weighting:
    """How slots are weighted: by decay, or by D-PACE where ``alpha`` is given.

    ``alpha`` in (0, 1] smooths the confidence: 1 is none at all, every slot counts as reached.
    ``distil`` in [0, 1] is the share of the target's distribution in the loss.
    """

    gamma: float = 7.0
    alpha: float | None = None
    distil: float = 0.0


@dataclass(frozen=True)
class Teacher:
    """The target's distribution at each slot, its likeliest tokens alone.

    Attributes:
        columns: int64 ``[blocks, B-1, T]`` of the logits; -1 where the drafter can't propose one.
        probs: ``[blocks, B-1, T]``.
    """

    columns: Tensor
    probs: Tensor

    def cross_entropy(self, log_probs: Tensor) -> Tensor:
        """``[blocks, B-1]``, against ``log_probs [blocks, B-1, V]``.

        What the T tokens don't cover is left out: it moves no optimum, since the gradient
        vanishes where the drafter's probabilities are in proportion to the target's.
        """
        probs = self.probs.float().masked_fill(self.columns < 0, 0.0)
        return -(probs * log_probs.gather(-1, self.columns.clamp(min=0))).sum(-1)


@dataclass(frozen=True)
class BlockLoss:
    """Sums over the blocks of a step, to be added up over ranks.

    Attributes:
        total: weighted cross-entropy, to be divided by ``weight``.
        weight: sum of the weights.
        hits: ``[B-1]`` slots whose likeliest token is the target's.
        slots: ``[B-1]`` slots that have a token of the target's.
    """

    total: Tensor
    weight: Tensor
    hits: Tensor
    slots: Tensor

    def __add__(self, other: BlockLoss) -> BlockLoss:
        return BlockLoss(
            self.total + other.total,
            self.weight + other.weight,
            self.hits + other.hits,
            self.slots + other.slots,
        )


def block_loss(
    logits: Tensor,
    labels: Tensor,
    valid: Tensor,
    weighting: Weighting,
    teacher: Teacher | None = None,
) -> BlockLoss:
    """Loss of slots 1..B-1.

    Args:
        logits: ``[blocks, B-1, V]``.
        labels: int64 ``[blocks, B-1]``, the target's tokens as columns of the logits; -1 where
            the drafter can't propose the token: a miss that nothing is learnt from.
        valid: bool ``[blocks, B-1]``, slots that have a token of the target's.
        teacher: needed where ``weighting.distil`` is not 0.
    """
    learnt = valid & (labels >= 0)
    log_probs = logits.float().log_softmax(-1)
    entropy = -log_probs.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    weights = position_weights(entropy.detach(), learnt, weighting) * learnt
    if teacher is not None and weighting.distil:
        entropy = torch.lerp(entropy, teacher.cross_entropy(log_probs), weighting.distil)
    hits = (logits.argmax(-1) == labels) & valid
    return BlockLoss(
        (entropy * weights).sum(), weights.sum(), hits.float().sum(0), valid.float().sum(0)
    )


def position_weights(entropy: Tensor, learnt: Tensor, weighting: Weighting) -> Tensor:
    """``[blocks, B-1]`` or ``[B-1]``.

    Args:
        entropy: cross-entropy of each slot, detached.
        learnt: slots that count.
    """
    if weighting.alpha is None:
        return torch.exp(-torch.arange(entropy.shape[-1], device=entropy.device) / weighting.gamma)
    # Eq. 7 and 8 of the paper: smoothed confidence, its prefix products, and their suffix sums.
    confidence = torch.where(learnt, torch.exp(-entropy), 0.0)
    reached = ((1 - weighting.alpha) * confidence + weighting.alpha).cumprod(-1) * learnt
    return reached.flip(-1).cumsum(-1).flip(-1)
