"""From a batch to the drafter's loss, with the target's two ends frozen."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sglang_ddtree.drafter.model.config import DrafterConfig
from sglang_ddtree.drafter.model.target import embedding_scale, read_ends
from sglang_ddtree.drafter.objective.batches import Batch
from sglang_ddtree.drafter.objective.losses import BlockLoss, Teacher, Weighting, block_loss

# Logits of one piece; more blocks are done piece by piece, and again in the backward pass.
_LOGITS = 2**28


def block_inputs(anchor_tokens: Tensor, block: int, mask_token_id: int) -> Tensor:
    """``[..., A]`` anchor tokens to block input ids ``[..., A, block]``: anchor, then masks."""
    ids = torch.full((*anchor_tokens.shape, block), mask_token_id, device=anchor_tokens.device)
    ids[..., 0] = anchor_tokens
    return ids


def slot_positions(batch: Batch, block: int) -> Tensor:
    """Positions in the text that slots 1..B-1 stand for, flat: ``[texts, A * (B-1)]``."""
    slots = torch.arange(1, block, device=batch.tokens.device)
    return (batch.anchors[..., None] + slots).flatten(1)


def block_labels(batch: Batch, block: int) -> tuple[Tensor, Tensor]:
    """Tokens that slots 1..B-1 should propose, and which slots have one.

    A block ends with the target's own text: tokens after a token of someone else's don't count.

    Returns:
        int64 and bool ``[texts, A, B-1]``.
    """
    positions = slot_positions(batch, block)
    tokens = F.pad(batch.tokens, (0, block)).gather(1, positions)
    learn = F.pad(batch.learn, (0, block)).gather(1, positions)
    shape = (*batch.anchors.shape, block - 1)
    valid = learn.view(shape).long().cumprod(-1).bool() & batch.used[..., None]
    return tokens.view(shape), valid


def slot_teacher(batch: Batch, block: int, ends: Ends) -> Teacher | None:
    """The target's distributions at slots 1..B-1 of all blocks; None where not captured."""
    if (top := batch.likeliest) is None:
        return None
    positions = slot_positions(batch, block).clamp(max=batch.tokens.shape[1] - 1)
    shape = (-1, block - 1, top.tokens.shape[-1])
    texts = torch.arange(len(positions), device=positions.device)[:, None]
    columns = ends.columns[top.tokens[texts, positions].long()]
    return Teacher(columns.view(shape), top.probs[texts, positions].view(shape))


class Ends(nn.Module):
    """The target's embedding and head, frozen.

    Args:
        embedding, head: ``[vocab, hidden]``.
        scale: of the embedding (Gemma).
        draft_vocabulary: int64 ids that the head is restricted to; None for all.
    """

    def __init__(
        self,
        embedding: Tensor,
        head: Tensor,
        scale: float = 1.0,
        draft_vocabulary: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.scale = scale
        self.draft_vocabulary = draft_vocabulary
        self.embedding = embedding
        self.head = head if draft_vocabulary is None else head[draft_vocabulary]
        # The column of each token in the head's logits, -1 where it has none.
        self.columns = torch.arange(len(head))
        if draft_vocabulary is not None:
            self.columns = torch.full((len(head),), -1)
            self.columns[draft_vocabulary] = torch.arange(len(draft_vocabulary))

    @classmethod
    def of(cls, target: str, draft_vocabulary: Tensor | None = None) -> Ends:
        """The ends of the target in a local folder."""
        return cls(*read_ends(target), embedding_scale(target), draft_vocabulary)

    def place(self, device: torch.device, dtype: torch.dtype) -> Ends:
        self.embedding = self.embedding.to(device, dtype)
        self.head = self.head.to(device, dtype)
        self.columns = self.columns.to(device)
        return self

    def token_ids(self, columns: Tensor) -> Tensor:
        """Tokens that columns of the head's logits stand for."""
        return columns if self.draft_vocabulary is None else self.draft_vocabulary[columns]

    def embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.embedding) * self.scale


Model = Callable[[Tensor, Tensor, Tensor], Tensor]


def draft_loss(
    model: Model, ends: Ends, batch: Batch, config: DrafterConfig, weighting: Weighting
) -> BlockLoss:
    """The loss of all blocks of a batch."""
    with torch.no_grad():
        anchor_tokens = batch.tokens.gather(1, batch.anchors)
        ids = block_inputs(anchor_tokens, config.block, config.mask_token_id)
        embeds = ends.embed(ids)
        labels, valid = block_labels(batch, config.block)
        columns = ends.columns[labels].flatten(0, 1)
        teacher = slot_teacher(batch, config.block, ends) if weighting.distil else None
    features = batch.features.to(embeds.dtype)
    hidden = model(features, embeds, batch.anchors)[:, :, 1:].flatten(0, 1)
    valid = valid.flatten(0, 1)

    def piece(hidden: Tensor, blocks: slice) -> BlockLoss:
        part = teacher and Teacher(teacher.columns[blocks], teacher.probs[blocks])
        logits = F.linear(hidden, ends.head)
        return block_loss(logits, columns[blocks], valid[blocks], weighting, part)

    rows = max(1, _LOGITS // (len(ends.head) * (config.block - 1)))
    if len(hidden) <= rows:
        return piece(hidden, slice(None))
    parts = [slice(first, first + rows) for first in range(0, len(hidden), rows)]
    losses = [checkpoint(piece, hidden[part], part, use_reentrant=False) for part in parts]
    return sum(losses[1:], losses[0])
