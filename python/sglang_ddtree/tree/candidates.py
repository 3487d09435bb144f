"""What the drafter proposes: the likeliest tokens of each depth and their log-probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Candidates:
    """Candidate tokens of the D = B - 1 positions after the root, for a drafter of block size B.

    tokens: int64 [bs, D, K]; tokens[:, d] are the candidates of nodes at depth d + 1, all distinct.
    log_probs: float32 [bs, D, K], marginal log-probabilities, descending along K. A candidate of
        -inf does not exist: it never becomes a node.
    transitions: float32 [bs, D - 1, K, K] or None; transitions[:, d - 1, p, c], d >= 1, is the
        log-probability of candidate c of `tokens[:, d]` given candidate p of `tokens[:, d - 1]`.
        Where given, they stand in for the marginals of all depths but the first; rows need no
        order.

    Raises ValueError where shapes do not agree or a dtype is another.
    """

    tokens: Tensor
    log_probs: Tensor
    transitions: Tensor | None = None

    def __post_init__(self) -> None:
        if self.tokens.dim() != 3 or self.tokens.shape != self.log_probs.shape:
            raise ValueError(
                "tokens and log_probs must share one shape [bs, D, K], got "
                f"{list(self.tokens.shape)} and {list(self.log_probs.shape)}"
            )
        if self.tokens.dtype != torch.int64 or self.log_probs.dtype != torch.float32:
            raise ValueError(
                "tokens must be int64 and log_probs float32, got "
                f"{self.tokens.dtype} and {self.log_probs.dtype}"
            )
        bs, depths, topk = self.tokens.shape
        if depths < 1 or topk < 1:
            raise ValueError(f"need at least one depth and one candidate, got D={depths}, K={topk}")
        if self.transitions is not None:
            expected = (bs, depths - 1, topk, topk)
            if self.transitions.shape != expected or self.transitions.dtype != torch.float32:
                raise ValueError(
                    f"transitions must be float32 {list(expected)}, got "
                    f"{self.transitions.dtype} {list(self.transitions.shape)}"
                )

    @property
    def depths(self) -> int:
        """D, the number of positions that the drafter proposes."""
        return self.tokens.shape[1]

    @property
    def topk(self) -> int:
        """K, the number of candidates at each position."""
        return self.tokens.shape[2]

    @classmethod
    def from_logits(cls, logits: Tensor, topk: int) -> Candidates:
        """The `topk` likeliest tokens of each position (all V where V < topk).

        logits: [bs, D, V] of any floating type. The softmax runs over the whole vocabulary in
        float32. Equal logits rank by token id, smaller first, on every device, so ranks that share
        logits agree. A NaN logit counts as -inf; a row without a finite logit has no candidates.
        """
        # +inf becomes the largest float, as inf - inf in the softmax would be NaN.
        logits = torch.nan_to_num(logits.float(), nan=-math.inf, neginf=-math.inf)
        token_ids = torch.arange(logits.shape[-1], device=logits.device)
        tokens = _rank(logits, token_ids, topk)
        return cls(tokens, _normalise(logits.gather(-1, tokens), logits.logsumexp(-1)))

    @classmethod
    def from_topk(
        cls, values: Tensor, token_ids: Tensor, log_partition: Tensor, topk: int | None = None
    ) -> Candidates:
        """Candidates from logits already reduced, such as the top-k of each shard of a split head.

        values: [bs, D, M] logits in any order, NaN as in `from_logits`; token_ids: integer
        [bs, D, M], distinct along M; log_partition: [bs, D], logsumexp over the whole vocabulary;
        topk: how many of the M to keep, all of them by default. With M the concatenated top-k of
        all shards this equals `from_logits` of the unsplit head, up to ties inside one shard.
        """
        topk = values.shape[-1] if topk is None else topk
        values = torch.nan_to_num(values.float(), nan=-math.inf, neginf=-math.inf)
        token_ids = token_ids.long()
        best = _rank(values, token_ids, topk)
        log_probs = _normalise(values.gather(-1, best), log_partition)
        return cls(token_ids.gather(-1, best), log_probs)


def _rank(values: Tensor, token_ids: Tensor, topk: int) -> Tensor:
    """Indices of the `topk` largest `values` (float32, no NaN), equal values by ascending id.

    `torch.topk` leaves the order of ties to the device, so both criteria go into one integer key:
    the bits of a float, with those of negative numbers flipped, order as the floats do.
    """
    if topk < 1:
        raise ValueError(f"topk must be positive, got {topk}")
    bits = (values + 0.0).view(torch.int32)  # + 0.0 turns -0.0, which has other bits, into 0.0
    ordered = (bits >> 31).bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits)
    key = ordered.long().bitwise_left_shift_(32).sub_(token_ids)
    return key.topk(min(topk, values.shape[-1]), dim=-1).indices


def _normalise(logits: Tensor, log_partition: Tensor) -> Tensor:
    """Log-probabilities, at most 0 even where `log_partition` was rounded down."""
    log_probs = logits - log_partition.float().unsqueeze(-1)
    return torch.nan_to_num(log_probs, nan=-math.inf, neginf=-math.inf).clamp(max=0.0)
