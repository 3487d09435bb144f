"""The DFlash drafter: one pass over ``[last token, mask x (B-1)]``, in plain torch for training.

Follows ``srt/models/dflash.py`` of SGLang 0.5.23: the target's hidden states after the chosen
layers are concatenated, projected by ``fc`` and normalised by ``hidden_norm``; each layer makes
context keys and values from them directly (no input norm), and the block attends to the context
before its first token and to itself: to all of itself in a layer of full attention, causally in
one with a sliding window. Embedding and output head are the target's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sglang_ddtree.drafter.model.config import DrafterConfig
from sglang_ddtree.drafter.model.layers import Attention, Layer, RMSNorm, Shape, initialise
from sglang_ddtree.drafter.model.rope import tables


class Drafter(nn.Module):
    """The parameters of a DFlash checkpoint, by its names."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        size = config.shape
        features = len(config.target_layer_ids) * size.hidden
        self.fc = nn.Linear(features, size.hidden, bias=False)
        self.hidden_norm = RMSNorm(size.hidden, size.norm_eps)
        self.layers = nn.ModuleList(DraftLayer(size, window) for window in config.windows)
        self.norm = RMSNorm(size.hidden, size.norm_eps)
        self._rope: tuple[Tensor, Tensor] | None = None
        initialise(self)

    def forward(self, features: Tensor, embeds: Tensor, anchors: Tensor) -> Tensor:
        """Hidden states of every block slot.

        Args:
            features: ``[batch, tokens, K * hidden]``, the target's after its chosen layers.
            embeds: ``[batch, A, block, hidden]`` target embeddings of each block's input.
            anchors: ``[batch, A]`` int64, position of each block's slot 0; a block sees the
                context strictly before it.

        Returns:
            ``[batch, A, block, hidden]`` after the final norm; slot k predicts the token at
            position ``anchor + k``.
        """
        view = self.view(features, embeds, anchors)
        context = self.hidden_norm(self.fc(features))
        x = embeds
        for layer in self.layers:
            x = layer(x, context, view)
        return self.norm(x)

    def view(self, features: Tensor, embeds: Tensor, anchors: Tensor) -> View:
        """What the blocks at ``anchors`` see of their context."""
        return View(self._rope_tables(features, embeds), anchors, features.shape[1])

    def _rope_tables(self, features: Tensor, embeds: Tensor) -> tuple[Tensor, Tensor]:
        positions = features.shape[1] + embeds.shape[2]
        if self._rope is None or len(self._rope[0]) < positions:
            cos, sin = tables(self.config.shape, self.config.rope_scaling, positions)
            self._rope = cos.to(features.device), sin.to(features.device)
        return self._rope


class View:
    """What blocks at ``anchors [batch, A]`` see of a context of ``tokens``, and where they are."""

    def __init__(self, rope: tuple[Tensor, Tensor], anchors: Tensor, tokens: int) -> None:
        self.rope, self.anchors = rope, anchors
        self.context = torch.arange(tokens, device=anchors.device)

    def block_rope(self, block: int) -> tuple[Tensor, Tensor]:
        """``[batch, A, 1, block, head_dim]`` each."""
        positions = self.anchors[..., None] + torch.arange(block, device=self.anchors.device)
        cos, sin = self.rope
        return cos[positions][:, :, None], sin[positions][:, :, None]

    def context_rope(self) -> tuple[Tensor, Tensor]:
        cos, sin = self.rope
        return cos[: len(self.context)], sin[: len(self.context)]

    def hidden_context(self, block: int, window: int | None) -> Tensor:
        """True where a context token is hidden: ``[batch, 1, A, block or 1, tokens]``."""
        hidden = self.context >= self.anchors[..., None, None]
        if window is not None:
            slots = self.anchors[..., None] + torch.arange(block, device=self.anchors.device)
            hidden = hidden | (slots[..., None] - self.context >= window)
        return hidden[:, None]


class DraftLayer(Layer):
    """A layer of the drafter; with a window it is causal, as SGLang runs sliding layers."""

    def __init__(self, size: Shape, window: int | None) -> None:
        super().__init__(size)
        self.window = window

    def forward(self, x: Tensor, context: Tensor, view: View) -> Tensor:
        return self.feed_forward(self.attend(x, context, view))

    def attend(self, x: Tensor, context: Tensor, view: View) -> Tensor:
        """``x [batch, A, block, hidden]`` with what attention adds to it."""
        attention, block = self.self_attn, x.shape[-2]
        normed = self.input_layernorm(x)
        cos, sin = view.block_rope(block)
        queries = attention.queries(normed, cos, sin)
        block_kv = attention.keys_values(normed, cos, sin)
        context_kv = attention.keys_values(context, *view.context_rope())
        hidden = view.hidden_context(block, self.window)
        causal = self.window is not None
        mixed = _attend(attention, queries, context_kv, block_kv, hidden, causal)
        return x + attention.output(mixed)


def _attend(
    attention: Attention,
    queries: Tensor,
    context_kv: tuple[Tensor, Tensor],
    block_kv: tuple[Tensor, Tensor],
    hidden: Tensor,
    causal: bool,
) -> Tensor:
    """One softmax over visible context and own block.

    ``queries [batch, A, heads, block, d]``; context ``[batch, kv_heads, tokens, d]`` is shared by
    all A blocks of a sequence, so it is multiplied once and never copied per block.
    """
    keys, values = (attention.repeat_kv(x) for x in context_kv)
    own_keys, own_values = (attention.repeat_kv(x) for x in block_kv)
    batch, count, heads, block, dim = queries.shape
    scale = dim**-0.5
    rows = queries.transpose(1, 2).reshape(batch, heads, count * block, dim)
    before = (rows @ keys.transpose(-1, -2)) * scale
    before = before.view(batch, heads, count, block, -1)
    before = before.masked_fill(hidden, float("-inf"))
    own = ((queries @ own_keys.transpose(-1, -2)) * scale).transpose(1, 2)
    if causal:
        later = torch.ones(block, block, dtype=torch.bool, device=own.device).triu(1)
        own = own.masked_fill(later, float("-inf"))
    weights = torch.cat([before, own], dim=-1).softmax(dim=-1).to(queries.dtype)
    seen = weights[..., :-block].reshape(batch, heads, count * block, -1) @ values
    mixed = seen.view(batch, heads, count, block, dim).transpose(1, 2)
    return mixed + weights[..., -block:].transpose(1, 2) @ own_values
