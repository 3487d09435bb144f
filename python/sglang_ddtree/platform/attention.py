"""The attention backend of the CPU platform: prefill, decode and tree verification in torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

from sglang_ddtree.ops.tree_attention import (
    TreeAttentionMetadata,
    additive,
    attend,
    attend_sdpa,
    tree_attention,
    tree_attention_sdpa,
)

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


@dataclass
class NodePlan:
    """A decode, verify or draft-block forward: the same number of nodes in every request."""

    causal: TreeAttentionMetadata
    swa_slots: torch.Tensor | None
    _variants: dict[tuple[bool, bool], TreeAttentionMetadata] = field(default_factory=dict)

    def metadata(self, *, bidirectional: bool, swa: bool) -> TreeAttentionMetadata:
        """For a layer's kind: bidirectional inside a draft block, or reading the window pool."""
        if (bidirectional, swa) not in self._variants:
            metadata = self.causal
            if bidirectional:
                everything = torch.ones_like(metadata.tree_mask)
                metadata = replace(metadata, tree_mask=everything, _masks={}, _biases={})
            if swa:
                assert self.swa_slots is not None
                metadata = replace(metadata, slots=self.swa_slots)
            self._variants[bidirectional, swa] = metadata
        return self._variants[bidirectional, swa]


@dataclass(frozen=True)
class ChunkPlan:
    """One request's chunk of a prefill.

    Attributes:
        rows: of the batch's queries.
        slots, swa_slots: int64 ``[S]``, keys in the full and in the window pool.
        distance: int64 ``[chunk, S]``, query position minus key position.
    """

    rows: slice
    slots: torch.Tensor
    swa_slots: torch.Tensor | None
    distance: torch.Tensor

    def visible(self, layer: RadixAttention) -> torch.Tensor:
        """bool ``[chunk, S]`` for one layer's kind of attention."""
        if layer.attn_type == AttentionType.ENCODER_ONLY:
            return torch.ones_like(self.distance, dtype=torch.bool)
        if layer.sliding_window_size > -1:
            return (self.distance >= 0) & (self.distance <= layer.sliding_window_size)
        return self.distance >= 0


class TorchTreeAttnBackend(AttentionBackend):
    """GQA and sliding-window attention over the paged K/V pool.

    A decode step is a tree of one node, a verify step a tree of ``N`` nodes, a draft block a tree
    whose nodes all see each other: the three go through one batched operation. Prefill chunks are
    ragged and go request by request.
    """

    # Takes the tree from ``spec_info.tree``; no custom mask has to be laid out for it.
    reads_tree = True

    def __init__(self, model_runner: ModelRunner) -> None:
        super().__init__()
        # SGLang reads both pools from the full_attn_backend of a hybrid model
        # (srt/layers/attention/hybrid_linear_attn_backend.py:1197@0.5.23).
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self.is_hybrid_swa = isinstance(self.token_to_kv_pool, SWAKVPool)
        self.device = model_runner.device

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Make what all layers of this forward share."""
        self.swa_out_cache_loc = (
            self.token_to_kv_pool.translate_loc_from_full_to_swa(forward_batch.out_cache_loc)
            if self.is_hybrid_swa and forward_batch.out_cache_loc is not None
            else None
        )
        mode = forward_batch.forward_mode
        self._plan: NodePlan | list[ChunkPlan]
        if mode.is_decode():
            self._plan = self._plan_nodes(forward_batch, forward_batch.seq_lens - 1, width=1)
        elif mode.is_target_verify():
            width = forward_batch.spec_info.draft_token_num
            self._plan = self._plan_nodes(forward_batch, forward_batch.seq_lens, width=width)
        else:
            self._plan = self._plan_chunks(forward_batch)

    def _plan_nodes(
        self, forward_batch: ForwardBatch, prefix_lens: torch.Tensor, width: int
    ) -> NodePlan:
        tree = getattr(forward_batch.spec_info, "tree", None)
        if tree is None:
            chain = torch.arange(width, device=self.device)
            tree_mask, depth = (chain[:, None] >= chain)[None], chain[None]
        else:
            tree_mask, depth = tree.ancestor_mask(), tree.depth.long()
        num_keys = int(prefix_lens.max()) + width
        slots = self.req_to_token_pool.req_to_token[
            forward_batch.req_pool_indices, :num_keys
        ].long()
        causal = TreeAttentionMetadata(slots, prefix_lens.long(), tree_mask, depth)
        # What lies beyond a shorter request is not its own; slot 0 is the pool's padding.
        slots.masked_fill_(~causal.live, 0)
        return NodePlan(causal, self._swa_slots(slots))

    def _plan_chunks(self, forward_batch: ForwardBatch) -> list[ChunkPlan]:
        plans, start = [], 0
        chunks = zip(
            forward_batch.req_pool_indices.tolist(),
            forward_batch.extend_prefix_lens_cpu,
            forward_batch.extend_seq_lens_cpu,
            strict=True,
        )
        for row, prefix_len, chunk_len in chunks:
            slots = self.req_to_token_pool.req_to_token[row, : prefix_len + chunk_len].long()
            position = torch.arange(prefix_len + chunk_len, device=self.device)
            distance = position[prefix_len:, None] - position
            rows = slice(start, start + chunk_len)
            plans.append(ChunkPlan(rows, slots, self._swa_slots(slots), distance))
            start += chunk_len
        return plans

    def _swa_slots(self, slots: torch.Tensor) -> torch.Tensor | None:
        return (
            self.token_to_kv_pool.translate_loc_from_full_to_swa(slots)
            if self.is_hybrid_swa
            else None
        )

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        """Attention of one layer; ``q`` is ``[tokens, heads * head_dim]`` and so is the result."""
        self._check(layer)
        if save_kv_cache and k is not None:
            self.token_to_kv_pool.set_kv_buffer(
                layer, KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc), k, v
            )
        k_cache = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        v_cache = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        in_swa_pool = self.is_hybrid_swa and self.token_to_kv_pool.layers_mapping[layer.layer_id][1]
        if isinstance(self._plan, NodePlan):
            metadata = self._plan.metadata(
                bidirectional=layer.attn_type == AttentionType.ENCODER_ONLY, swa=in_swa_pool
            )
            nodes = q.view(metadata.slots.shape[0], -1, *q.shape[1:])
            window = layer.sliding_window_size
            if layer.logit_cap > 0:
                out, _ = tree_attention(
                    nodes,
                    k_cache,
                    v_cache,
                    metadata,
                    scale=layer.scaling,
                    window=window,
                    soft_cap=layer.logit_cap,
                )
            else:
                out = tree_attention_sdpa(
                    nodes, k_cache, v_cache, metadata, scale=layer.scaling, window=window
                )
            return out.reshape(q.shape[0], -1)
        outs = []
        for chunk in self._plan:
            slots = chunk.swa_slots if in_swa_pool else chunk.slots
            queries, k, v = q[None, chunk.rows], k_cache[slots][None], v_cache[slots][None]
            visible = chunk.visible(layer)[None]
            if layer.logit_cap > 0:
                out, _ = attend(
                    queries, k, v, visible, scale=layer.scaling, soft_cap=layer.logit_cap
                )
            else:
                bias = additive(visible, q.dtype)
                out = attend_sdpa(queries, k.to(q.dtype), v.to(q.dtype), bias, scale=layer.scaling)
            outs.append(out[0])
        return torch.cat(outs).reshape(q.shape[0], -1)

    # The plan knows the difference between decoding and extending.
    forward_decode = forward_extend

    @staticmethod
    def _check(layer: RadixAttention) -> None:
        if layer.is_cross_attention:
            raise NotImplementedError(
                "the CPU platform's attention backend has no cross attention; serve this model "
                "on a GPU"
            )

    def support_triton(self) -> bool:
        return False
