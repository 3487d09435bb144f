"""``Qwen3ForCausalLM`` in plain torch, with the tensor names of the published checkpoints."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sglang_ddtree.drafter.model.layers import LayerList, RMSNorm, initialise, rope_table

from .recipe import ModelSize


class Backbone(nn.Module):
    """The ``model.`` part of ``Qwen3ForCausalLM``."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(size.vocab, size.hidden)
        self.layers = LayerList(size)
        self.norm = RMSNorm(size.hidden, size.norm_eps)


class KVCache:
    """Keys and values, ``[layers, 2, batch, kv_heads, capacity, head_dim]``, filled in order."""

    def __init__(self, size: ModelSize, batch: int, capacity: int, dtype: torch.dtype) -> None:
        shape = (size.layers, 2, batch, size.kv_heads, capacity, size.head_dim)
        self.rows = torch.zeros(shape, dtype=dtype)
        self.length = 0


class Target(nn.Module):
    """``Qwen3ForCausalLM`` with tied embeddings."""

    cos: Tensor
    sin: Tensor

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.size = size
        self.model = Backbone(size)
        cos, sin = rope_table(size, size.max_positions)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        initialise(self)

    def new_cache(self, batch: int, capacity: int, dtype: torch.dtype) -> KVCache:
        return KVCache(self.size, batch, capacity, dtype)

    def embed(self, tokens: Tensor) -> Tensor:
        """``[...]`` ids to ``[..., hidden]``, as the first layer takes them."""
        return self.model.embed_tokens(tokens)

    def hidden_states(self, tokens: Tensor, cache: KVCache | None = None) -> list[Tensor]:
        """Residual stream ``[batch, n, hidden]`` after each layer, under causal attention.

        ``tokens [batch, n]`` follow the ``cache.length`` tokens already cached.
        """
        start = cache.length if cache is not None else 0
        end, mask = start + tokens.shape[1], None
        cos, sin = self.cos[start:end], self.sin[start:end]
        if start and tokens.shape[1] > 1:
            mask = torch.ones(tokens.shape[1], end, dtype=torch.bool).tril(diagonal=start)
        x = self.embed(tokens)
        states = []
        for index, layer in enumerate(self.model.layers):
            attention = layer.self_attn
            normed = layer.input_layernorm(x)
            queries = attention.queries(normed, cos, sin)
            keys, values = attention.keys_values(normed, cos, sin)
            if cache is not None:
                cache.rows[index, 0, :, :, start:end] = keys
                cache.rows[index, 1, :, :, start:end] = values
                keys, values = cache.rows[index, :, :, :, :end].to(queries.dtype)
            mixed = attention.mix(queries, keys, values.to(queries.dtype), mask)
            x = layer.feed_forward(x + attention.output(mixed))
            states.append(x)
        if cache is not None:
            cache.length = end
        return states

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of normalised hidden states, ``[..., hidden] -> [..., vocab]``."""
        return F.linear(hidden, self.model.embed_tokens.weight)

    def logits(self, states: list[Tensor]) -> Tensor:
        return self.head(self.model.norm(states[-1]))
