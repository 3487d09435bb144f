"""The attention backend that SGLang calls for tree verification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from torch import Tensor

from sglang_ddtree.engine.attention.buffers import (
    LayerKind,
    TreeBuffers,
    WindowPool,
    Workspaces,
)
from sglang_ddtree.engine.attention.selection import NAME
from sglang_ddtree.ops.dispatch import MLA, Choice
from sglang_ddtree.ops.tree_attention.paged import PagedTree, SplitWorkspace

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


@dataclass(frozen=True, eq=False)
class VerifyPlan:
    """What the layers of one batch size read; its tensors are views of static buffers."""

    bs: int
    tree: PagedTree
    window_tree: PagedTree | None
    workspaces: dict[LayerKind, SplitWorkspace]


class DDTreeAttnBackend(AttentionBackend):
    """Tree verification over K/V heads, sliding windows and latent rows.

    A step's trees go into static buffers before the forward, outside of a graph; a layer is a write
    to the pool and one launch. Nothing is allocated and nothing read back in between, so that a
    captured forward can be replayed.

    Args:
        choice: of the dispatch table, for MLA or for grouped heads.
        width: nodes of a tree.
    """

    # Takes the tree from ``spec_info.tree``; no custom mask has to be laid out for it.
    reads_tree = True
    needs_cpu_seq_lens = False

    def __init__(self, runner: ModelRunner, choice: Choice, width: int) -> None:
        super().__init__()
        self.req_to_token_pool = runner.req_to_token_pool
        self.token_to_kv_pool = runner.token_to_kv_pool
        self.kv_index_translator = runner.kv_index_translator
        self.max_context_len = runner.model_config.context_len
        self.data_type = runner.kv_cache_dtype
        self._runner, self._choice, self._width = runner, choice, width
        self._attend = choice.load()
        self._is_latent = choice.operation == MLA
        self._layers = {layer.layer_id: layer for layer in _attention_layers(runner, choice)}
        self._pools = self.token_to_kv_pool if _has_window_pool(runner) else None
        self._kinds = {i: self._kind_of(layer) for i, layer in self._layers.items()}
        self._allocate(self.req_to_token_pool.size)

    def _allocate(self, max_bs: int) -> None:
        """Make the static buffers; whatever was captured with earlier ones is void."""
        runner, layers = self._runner, self._layers.values()
        pool = None
        if self._pools is not None:
            window = max(layer.sliding_window_size for layer in layers)
            pool = WindowPool(self._pools.translate_loc_from_full_to_swa, window)
        table = self.req_to_token_pool.req_to_token
        self._buffers = TreeBuffers(table, max_bs, self._width, runner.page_size, pool)
        self._workspaces = Workspaces(
            set(self._kinds.values()),
            max_bs,
            self._width,
            heads=max(layer.tp_q_head_num for layer in layers),
            v_dim=max(layer.v_head_dim for layer in layers),
            dtype=runner.dtype,
            device=table.device,
            processors=_processors(table.device),
        )
        self._plans: dict[int, VerifyPlan] = {}

    def _kind_of(self, layer: RadixAttention) -> LayerKind:
        group = layer.tp_q_head_num // layer.tp_k_head_num
        window = layer.sliding_window_size
        longest = self.max_context_len if window < 0 else window
        if self._is_latent and self._choice.kernel == "cuda":
            from sglang_ddtree.ops.tree_attention.cuda import row_tiles as cuda_row_tiles

            return LayerKind(cuda_row_tiles(self._width * group)[1], longest)
        from sglang_ddtree.ops.tree_attention.triton import row_tiles

        dim = layer.v_head_dim if self._is_latent else layer.qk_head_dim
        return LayerKind(row_tiles(self._width, group, dim)[1] * layer.tp_k_head_num, longest)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        if max_bs > self._buffers.max_bs:
            self._allocate(max_bs)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def init_forward_metadata_out_graph(
        self, forward_batch: ForwardBatch, in_capture: bool = False
    ) -> None:
        """Load a step's trees; a capture keeps what the buffers hold."""
        if not forward_batch.forward_mode.is_target_verify():
            raise NotImplementedError(
                f"attention backend {NAME!r} verifies trees and nothing else, got a "
                f"{forward_batch.forward_mode.name} batch"
            )
        bs = forward_batch.batch_size
        tree = getattr(forward_batch.spec_info, "tree", None)
        if tree is not None:
            rows, lens = forward_batch.req_pool_indices[:bs], forward_batch.seq_lens[:bs]
            self._buffers.load(rows, lens, tree.depth, tree.ancestors)
            self._buffers.load_window(bs, forward_batch.out_cache_loc)
        self._plan = self._plan_of(bs)

    def _plan_of(self, bs: int) -> VerifyPlan:
        if bs not in self._plans:
            kinds = set(self._kinds.values())
            self._plans[bs] = VerifyPlan(
                bs,
                self._buffers.tree(bs),
                self._buffers.window_tree(bs),
                {kind: self._workspaces.of(kind, bs) for kind in kinds},
            )
        return self._plans[bs]

    def forward_extend(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **unsupported: Any,
    ) -> Tensor:
        """Write the nodes' rows, then attend.

        Args:
            q: ``[bs * N, H * D]``, or absorbed ``[bs * N, H, L + R]``.
            k: ``[bs * N, Hkv, D]``, or latent rows ``[bs * N, 1, L + R]``; ``None`` for a layer
                that reads another layer's rows.

        Returns:
            ``[bs * N, H * Dv]``, overwritten by the next layer.
        """
        self._check(layer, unsupported)
        if save_kv_cache and k is not None:
            self._write(k, v, layer, forward_batch)
        heads, v_dim = layer.tp_q_head_num, layer.v_head_dim
        plan = self._plan
        out, lse = self._workspaces.outputs(plan.bs, self._width, heads, v_dim)
        nodes = q.view(plan.bs, self._width, heads, layer.qk_head_dim)
        workspace = plan.workspaces[self._kinds[layer.layer_id]]
        if self._is_latent:
            self._attend(
                nodes,
                self.token_to_kv_pool.get_key_buffer(layer.layer_id),
                plan.tree,
                workspace,
                scale=layer.scaling,
                latent_dim=v_dim,
                latent_scale=layer.k_scale_float or 1.0,
                out=out,
                lse=lse,
            )
        else:
            self._attend(
                nodes,
                self.token_to_kv_pool.get_key_buffer(layer.layer_id),
                self.token_to_kv_pool.get_value_buffer(layer.layer_id),
                self._tree_of(layer),
                workspace,
                scale=layer.scaling,
                window=layer.sliding_window_size,
                soft_cap=layer.logit_cap,
                k_scale=layer.k_scale_float or 1.0,
                v_scale=layer.v_scale_float or 1.0,
                out=out,
                lse=lse,
            )
        return out.view(q.shape[0], heads * v_dim)

    def _tree_of(self, layer: RadixAttention) -> PagedTree:
        if self._pools is not None and self._pools.layers_mapping[layer.layer_id][1]:
            assert self._plan.window_tree is not None
            return self._plan.window_tree
        return self._plan.tree

    def _write(
        self, k: Tensor, v: Tensor | None, layer: RadixAttention, forward_batch: ForwardBatch
    ) -> None:
        """As srt/layers/attention/triton_backend.py:1700@0.5.23 writes."""
        tokens = forward_batch.out_cache_loc.shape[0]
        window_slots = None if self._pools is None else self._buffers.write_slots[:tokens]
        loc = KVWriteLoc.for_batch(forward_batch, swa_loc=window_slots)
        if layer.k_scale is None:
            self.token_to_kv_pool.set_kv_buffer(layer, loc, k, v)
        elif self._is_latent:  # its pool takes no scale
            self.token_to_kv_pool.set_kv_buffer(layer, loc, k / layer.k_scale, v)
        else:
            self.token_to_kv_pool.set_kv_buffer(layer, loc, k, v, layer.k_scale, layer.v_scale)

    @staticmethod
    def _check(layer: RadixAttention, unsupported: dict[str, Any]) -> None:
        given = [name for name, value in unsupported.items() if value is not None]
        if layer.is_cross_attention or layer.attn_type == AttentionType.ENCODER_ONLY:
            given.append("cross attention or an encoder's")
        if given:
            raise NotImplementedError(
                f"attention backend {NAME!r} does not take {', '.join(given)}: name another with "
                "--decode-attention-backend triton"
            )

    def support_triton(self) -> bool:
        return True


def _attention_layers(runner: ModelRunner, choice: Choice) -> list[RadixAttention]:
    layers = [x for x in runner.model.modules() if isinstance(x, RadixAttention)]
    if choice.operation != MLA:
        return layers
    # The others are for prefill over up-projected heads.
    return [x for x in layers if x.v_head_dim == runner.model_config.kv_lora_rank]


def _has_window_pool(runner: ModelRunner) -> bool:
    return isinstance(runner.token_to_kv_pool, SWAKVPool)


def _processors(device: torch.device) -> int:
    """How many blocks run at once; the interpreter runs one after another."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
