"""Trees over recurrent layers by kernels: a launch a layer, and one for the commit of all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from sglang_ddtree.engine.recurrent.cache_copies import checkpoints_of
from sglang_ddtree.engine.recurrent.stashed import StashedLayers
from sglang_ddtree.ops.gdn_tree import RecurrentLayer
from sglang_ddtree.ops.gdn_tree.paths import TreePaths
from sglang_ddtree.tree.topology import num_words

if TYPE_CHECKING:
    from sglang.srt.configs.mamba_utils import Mamba2CacheParams
    from sglang.srt.layers.attention.linear.gdn_backend import GDNAttnBackend
    from sglang.srt.layers.radix_linear_attention import RadixLinearAttention
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    from sglang_ddtree.engine.verify_input import TreeVerifyInput
    from sglang_ddtree.ops.dispatch import Choice
    from sglang_ddtree.tree import Acceptance


class FusedLayers(StashedLayers):
    """``StashedLayers`` whose operations are launches over the same stash and pool.

    A layer allocates nothing and reads the trees and the requests' slots from static buffers.
    """

    def __init__(
        self,
        backend: GDNAttnBackend,
        params: Mamba2CacheParams,
        width: int,
        dtype: torch.dtype,
        verify: Choice,
        commit: Choice,
    ) -> None:
        super().__init__(backend, params, width, dtype)
        self._verify, self._commit = verify.load(), commit.load()
        self._float_gates = verify.kernel == "cuda"
        device, max_bs, shape = self._states.device, self._pool.size, self._shape
        self._slot_buffer = torch.zeros(max_bs, dtype=torch.int64, device=device)
        out = (max_bs, width, shape.v_heads, shape.v_dim)
        self._out = torch.empty(out, dtype=dtype, device=device)
        # Of each layer as SGLang has it and as the kernels read it, at the addresses of a graph.
        self._layers: dict[int, tuple[RecurrentLayer, RecurrentLayer]] = {}

    def _allocate_paths(self, max_bs: int, device: torch.device) -> None:
        size = (max_bs, self._width)
        self._parent = torch.full(size, -1, dtype=torch.int32, device=device)
        words = num_words(self._width)
        self._ancestors = torch.zeros(*size, words, dtype=torch.int64, device=device)

    def begin(self, verify_input: TreeVerifyInput) -> None:
        tree = verify_input.tree
        assert tree is not None
        self._parent[: tree.bs].copy_(tree.parent)
        self._ancestors[: tree.bs].copy_(tree.ancestors)

    def verify(
        self,
        layer: RadixLinearAttention,
        mixed_qkv: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
    ) -> torch.Tensor:
        mixed_qkv, a, b = (x.unflatten(0, (-1, self._width)) for x in (mixed_qkv, a, b))
        bs, index = len(mixed_qkv), self._pool.mamba_map[layer.layer_id]
        slots = self._slot_buffer[:bs]
        if index == 0:  # the first layer of a forward: part of it when it is captured
            slots.copy_(self._slots(bs))
        out = self._out[:bs]
        self._verify(
            self._layer(layer),
            mixed_qkv,
            a,
            b,
            self._states[index],
            self._windows[index],
            slots,
            self._tree_paths(bs),
            self._stash.layer(index).requests(bs),
            out,
        )
        return out.flatten(0, 1).unsqueeze(0)

    def commit(self, batch: ScheduleBatch, accepted: Acceptance, prefix_lens: torch.Tensor) -> None:
        """Checkpoints first, since the requests' own states are written in place."""
        slots = self._slots(len(accepted.leaf))
        checkpoints = checkpoints_of(batch, accepted, prefix_lens)
        if checkpoints is not None:
            targets = self._backend._translate_mamba_indices(checkpoints.slots).long()
            targets = torch.where(checkpoints.nodes >= 0, targets, -1)  # -1 is not written
            self._write(checkpoints.nodes, slots, targets)
        self._write(accepted.leaf, slots, slots)

    def _write(self, node: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> None:
        paths = self._tree_paths(len(node))
        self._commit(
            self._shape, self._stash, self._states, self._windows, paths, node, source, target
        )

    def follow_weights(self) -> None:
        """Bring the copies of the layers' gates up to date where they lie."""
        for loaded, read in self._layers.values():
            for name in ("A_log", "dt_bias"):
                weight, copy = getattr(loaded, name), getattr(read, name)
                if copy is not weight:
                    copy.copy_(weight)

    def _layer(self, layer: RadixLinearAttention) -> RecurrentLayer:
        if layer.layer_id not in self._layers:
            loaded = RecurrentLayer.gdn(layer)
            read = loaded
            if self._float_gates:  # of a bfloat16 checkpoint dt_bias is bfloat16
                read = replace(loaded, A_log=loaded.A_log.float(), dt_bias=loaded.dt_bias.float())
            self._layers[layer.layer_id] = loaded, read
        return self._layers[layer.layer_id][1]

    def _tree_paths(self, bs: int) -> TreePaths:
        return TreePaths(self._parent[:bs], self._ancestors[:bs])
