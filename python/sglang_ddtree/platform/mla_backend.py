"""Multi-head latent attention (MLA) on the CPU platform: DeepSeek-V3, Kimi K2 and their like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from sglang_ddtree.ops.tree_attention import (
    additive,
    attend_latent_sdpa,
    latent_tree_attention_sdpa,
)
from sglang_ddtree.platform.attention import NodePlan, TorchTreeAttnBackend

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class TorchTreeMLABackend(TorchTreeAttnBackend):
    """Absorbed attention over the paged latent pool, in prefill, decode and tree verification.

    Every mode goes through the same absorbed form, so that a cached prefix, a chunk of a prompt, a
    decode step and a verified node see the same numbers up to the order of summation.
    """

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        """Attention of one layer.

        Args:
            q: absorbed, ``[tokens, H * D]`` or ``[tokens, H, D]``.
            k: latent rows ``[tokens, 1, D]`` of the batch's tokens; ``v`` is their first part.

        Returns:
            ``[tokens, H * value_dim]``.
        """
        self._check(layer)
        if save_kv_cache and k is not None:
            loc = KVWriteLoc(forward_batch.out_cache_loc, None)
            self.token_to_kv_pool.set_kv_buffer(layer, loc, k, v)
        cache = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        shape = {"value_dim": layer.v_head_dim, "scale": layer.scaling}
        if isinstance(self._plan, NodePlan):
            metadata = self._plan.metadata(bidirectional=False, swa=False)
            nodes = q.view(metadata.slots.shape[0], -1, *q.shape[1:])
            out = latent_tree_attention_sdpa(nodes, cache, metadata, **shape)
            return out.reshape(q.shape[0], -1)
        outs = []
        for chunk in self._plan:
            rows = cache[chunk.slots][None].to(q.dtype)
            bias = additive(chunk.visible(layer)[None], q.dtype)
            outs.append(attend_latent_sdpa(q[None, chunk.rows], rows, bias, **shape)[0])
        return torch.cat(outs).reshape(q.shape[0], -1)

    forward_decode = forward_extend


def always_absorbed(attention: Any, forward_batch: ForwardBatch) -> Any:
    """How DeepSeek's layers call this backend; MHA over up-projected keys is never asked for.

    An entry of ``AttentionBackendRegistry``
    (srt/models/deepseek_common/attention_backend_handler.py:50@0.5.23).
    """
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import (
        AttnForwardMethod,
    )

    return AttnForwardMethod.MLA


def register() -> None:
    """Tell DeepSeek's layers about this backend; their modules are too heavy for every process."""
    from sglang.srt.models.deepseek_common.attention_backend_handler import (
        AttentionBackendRegistry,
    )

    from sglang_ddtree.platform.cpu import ATTENTION_BACKEND

    AttentionBackendRegistry.register(ATTENTION_BACKEND, always_absorbed)
