"""Gated-delta-rule layers of the CPU platform: prefill, decode and prefix-cache checkpoints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.attention.linear.gdn_backend import GDNAttnBackend

from sglang_ddtree.ops.gdn_tree import RecurrentLayer, TreeRecurrenceMetadata, commit, verify

if TYPE_CHECKING:
    from sglang.srt.layers.radix_linear_attention import RadixLinearAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

# Tokens of a prefill that go through a layer at once; its work grows with the square.
CHUNK = 64
WINDOW_DTYPE = "SGLANG_MAMBA_CONV_DTYPE"


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens of one request that go through a layer at once.

    Attributes:
        rows: of the batch's tokens.
        slot: of the request's state.
        checkpoint: slot that receives a copy of the state after the segment, or ``None``.
    """

    rows: slice
    slot: int
    checkpoint: int | None


def segments(
    lengths: Sequence[int], slots: Sequence[int], tracked: Sequence[tuple[int, int] | None]
) -> list[Segment]:
    """Cut a prefill batch into segments of at most :data:`CHUNK` tokens.

    Args:
        lengths: tokens of each request in this batch.
        slots: slot of each request's state.
        tracked: tokens after which a request's state goes into the prefix cache, and the slot that
            receives it; ``None`` for no checkpoint.
    """
    plan, start = [], 0
    for length, slot, point in zip(lengths, slots, tracked, strict=True):
        after, target = point or (0, None)
        begin = 0
        for end in sorted({*range(CHUNK, length, CHUNK), after, length} - {0}):
            rows = slice(start + begin, start + end)
            plan.append(Segment(rows, slot, target if end == after else None))
            begin = end
        start += length
    return plan


@lru_cache(maxsize=256)
def _chain(bs: int, width: int, kernel_size: int) -> TreeRecurrenceMetadata:
    return TreeRecurrenceMetadata.chain(bs, width, kernel_size, "cpu")


class TorchGDNBackend(GDNAttnBackend):
    """``GDNAttnBackend`` (srt/layers/attention/linear/gdn_backend.py:515@0.5.23) in torch.

    A decode step is a tree of one node and a prefill segment a chain, verified and committed by the
    operation that verifies draft trees. Prompts are ragged and go segment by segment.
    """

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Make what all layers of this forward share."""
        super().init_forward_metadata(forward_batch)
        mode = forward_batch.forward_mode
        if mode.is_extend() and not mode.is_target_verify():
            self._segments = segments(
                list(forward_batch.extend_seq_lens_cpu),
                self.forward_metadata.mamba_cache_indices.tolist(),
                _tracked(forward_batch),
            )

    def forward_decode(
        self,
        layer: RadixLinearAttention,
        forward_batch: ForwardBatch,
        mixed_qkv: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        **_: Any,
    ) -> torch.Tensor:
        """One token of each request; ``[1, bs, H, dv]`` from ``mixed_qkv`` ``[bs, C]``."""
        slots = self.forward_metadata.mamba_cache_indices.long().clamp(min=0)
        out = self._advance(layer, slots, *(x.unsqueeze(1) for x in (mixed_qkv, a, b)))
        if forward_batch.mamba_track_mask is not None:
            rows = forward_batch.mamba_track_mask.nonzero().squeeze(1)
            targets = self.forward_metadata.mamba_track_indices.long()
            self._copy_state(layer, slots[rows], targets[rows])
        return out.transpose(0, 1)

    def forward_extend(
        self,
        layer: RadixLinearAttention,
        forward_batch: ForwardBatch,
        mixed_qkv: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        **_: Any,
    ) -> torch.Tensor:
        """Prefill; ``[1, tokens, H, dv]`` from ``mixed_qkv`` ``[tokens, C]``.

        Raises:
            NotImplementedError: a draft of stock SGLang's, whose verification keeps a snapshot of
                the state after every draft token.
        """
        if forward_batch.forward_mode.is_target_verify():
            raise NotImplementedError(
                "the CPU platform verifies drafts for hybrid models with DDTREE only: use "
                "--speculative-algorithm DDTREE"
            )
        out = mixed_qkv.new_zeros(1, mixed_qkv.shape[0], layer.num_v_heads, layer.head_v_dim)
        for segment in self._segments:
            slot = torch.tensor([segment.slot])
            inputs = (x[None, segment.rows] for x in (mixed_qkv, a, b))
            out[:, segment.rows] = self._advance(layer, slot, *inputs)
            if segment.checkpoint is not None:
                self._copy_state(layer, slot, torch.tensor([segment.checkpoint]))
        return out

    def _advance(
        self,
        layer: RadixLinearAttention,
        slots: torch.Tensor,
        mixed_qkv: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
    ) -> torch.Tensor:
        """Outputs ``[bs, n, H, dv]`` of ``n`` tokens of each request, whose states move on."""
        states, windows = self._layer_cache(layer)
        recurrent = RecurrentLayer.gdn(layer)
        bs, width = mixed_qkv.shape[:2]
        chain = _chain(bs, width, recurrent.shape.kernel_size)
        state, window = states[slots], windows[slots]
        out, stash = verify(recurrent, mixed_qkv, a, b, state, window, chain)
        last = torch.full((bs,), width - 1)
        states[slots], windows[slots] = commit(stash, state, window, chain, last)
        return out

    def _copy_state(
        self, layer: RadixLinearAttention, sources: torch.Tensor, targets: torch.Tensor
    ) -> None:
        for cache in self._layer_cache(layer):
            cache[targets] = cache[sources]

    def _layer_cache(self, layer: RadixLinearAttention) -> tuple[torch.Tensor, torch.Tensor]:
        """States ``[slots, H, dv, dk]`` and convolution windows ``[slots, C, K - 1]``."""
        cache = self.req_to_token_pool.mamba2_layer_cache(layer.layer_id)
        return cache.temporal, cache.conv[0]


def _tracked(forward_batch: ForwardBatch) -> list[tuple[int, int] | None]:
    """Where each request's state is checkpointed, as :func:`segments` takes it.

    The scheduler's target length may be one too large, which its own rounding takes back
    (srt/model_executor/forward_batch_info.py:1454@0.5.23).
    """
    lengths = forward_batch.mamba_track_aligned_lens()
    if lengths is None:
        return [None] * forward_batch.batch_size
    points = zip(lengths.tolist(), forward_batch.mamba_track_indices.tolist(), strict=True)
    masked = zip(points, forward_batch.mamba_track_mask.tolist(), strict=True)
    return [point if tracks else None for point, tracks in masked]


def keep_window_dtype(server_args: Any, previous: Any) -> Any:
    """Keep convolution windows in the model's dtype unless the user set another.

    SGLang rounds them to bfloat16, the default of ``SGLANG_MAMBA_CONV_DTYPE``, whatever the
    model's dtype (srt/configs/mamba_utils.py:68@0.5.23), which makes a float32 model's answers
    depend on where its prompt was cut. Wraps resolution step ``handle_mamba_backend``
    (srt/arg_groups/pipeline.py:254@0.5.23).
    """
    from sglang.srt.arg_groups.model_override_base import model_config_of
    from sglang.srt.configs.hybrid_arch import hybrid_gdn_config

    target = model_config_of(server_args)
    if hybrid_gdn_config(target) is not None:
        os.environ.setdefault(WINDOW_DTYPE, str(target.dtype).removeprefix("torch."))
    return previous(server_args)


def register() -> None:
    """Queue the replacements of GDN layers' Triton code."""
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from sglang_ddtree.platform import gdn_ops

    kernels = "sglang.kernels.ops"
    for target, replacement in {
        "sglang.srt.layers.attention.linear.gdn_backend.GDNAttnBackend": TorchGDNBackend,
        f"{kernels}.attention.triton_gdn_fused_proj.fused_qkvzba_split_reshape_cat_contiguous": (
            gdn_ops.split_projections
        ),
        f"{kernels}.attention.triton_gdn_fused_proj.fused_qkvzba_split_reshape_cat": (
            gdn_ops.split_grouped_projections
        ),
        f"{kernels}.attention.fla.layernorm_gated.layernorm_fn": gdn_ops.gated_norm,
        f"{kernels}.elementwise.elementwise.fused_sigmoid_mul": gdn_ops.gate_by_sigmoid,
    }.items():
        HookRegistry.register(target, replacement, HookType.REPLACE)
    register_resolution_hook("handle_mamba_backend")(keep_window_dtype)
