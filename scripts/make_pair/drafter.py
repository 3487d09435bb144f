"""The DFlash drafter: one non-causal pass over ``[last token, mask x (B-1)]``.

Follows ``srt/models/dflash.py`` of SGLang 0.5.23: the target's hidden states after the chosen
layers are concatenated, projected by ``fc`` and normalised by ``hidden_norm``; each layer makes
context keys and values from them directly (no input norm), and the block attends to the context
before its first token and to all of itself. Embedding and output head are the target's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .model import Attention, LayerList, RMSNorm, initialise, rope_table
from .recipe import Recipe


class Drafter(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        size = self.size = recipe.drafter
        self.block = recipe.block
        self.fc = nn.Linear(len(recipe.target_layer_ids) * size.hidden, size.hidden, bias=False)
        self.hidden_norm = RMSNorm(size.hidden, size.norm_eps)
        self.layers = LayerList(size)
        self.norm = RMSNorm(size.hidden, size.norm_eps)
        cos, sin = rope_table(size, size.max_positions)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        initialise(self)

    def project(self, features: Tensor) -> Tensor:
        """Target features ``[..., tokens, K * hidden]`` to context hiddens ``[..., hidden]``."""
        return self.hidden_norm(self.fc(features))

    def forward(self, context: Tensor, embeds: Tensor, anchors: Tensor) -> Tensor:
        """Hidden states of every block slot.

        Args:
            context: ``[batch, tokens, hidden]`` from ``project``; row p belongs to position p.
            embeds: ``[batch, A, block, hidden]`` target embeddings of each block's input.
            anchors: ``[batch, A]`` int64, position of each block's slot 0; a block sees the
                context strictly before it.

        Returns:
            ``[batch, A, block, hidden]`` after the final norm; slot k predicts the token at
            position ``anchor + k``.
        """
        tokens = context.shape[1]
        positions = anchors[..., None] + torch.arange(self.block)
        hidden_from = (torch.arange(tokens) >= anchors[..., None])[:, None, :, None, :]
        cos, sin = self.cos[positions][:, :, None], self.sin[positions][:, :, None]
        x = embeds
        for layer in self.layers:
            attention = layer.self_attn
            normed = layer.input_layernorm(x)
            queries = attention.queries(normed, cos, sin)
            block_kv = attention.keys_values(normed, cos, sin)
            context_kv = attention.keys_values(context, self.cos[:tokens], self.sin[:tokens])
            mixed = _attend(attention, queries, context_kv, block_kv, hidden_from)
            x = layer.feed_forward(x + attention.output(mixed))
        return self.norm(x)


def _attend(
    attention: Attention,
    queries: Tensor,
    context_kv: tuple[Tensor, Tensor],
    block_kv: tuple[Tensor, Tensor],
    hidden_from: Tensor,
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
    before = before.masked_fill(hidden_from, float("-inf"))
    own = ((queries @ own_keys.transpose(-1, -2)) * scale).transpose(1, 2)
    weights = torch.cat([before, own], dim=-1).softmax(dim=-1).to(queries.dtype)
    seen = weights[..., :-block].reshape(batch, heads, count * block, -1) @ values
    mixed = seen.view(batch, heads, count, block, dim).transpose(1, 2)
    return mixed + weights[..., -block:].transpose(1, 2) @ own_values
