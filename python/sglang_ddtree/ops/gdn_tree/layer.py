"""A recurrent layer of the target over a draft tree: verify all nodes, commit one path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sglang_ddtree.ops.gdn_tree.conv import path_window, tree_conv
from sglang_ddtree.ops.gdn_tree.gates import gdn_gates, kda_gates
from sglang_ddtree.ops.gdn_tree.metadata import TreeRecurrenceMetadata
from sglang_ddtree.ops.gdn_tree.reference import path_state, tree_recurrence
from sglang_ddtree.ops.gdn_tree.stash import RecurrentShape, Stash


@dataclass(frozen=True, eq=False)
class RecurrentLayer:
    """Shape and weights of a GDN or KDA layer, named as in SGLang's `RadixLinearAttention`.

    conv_weights: [C, K]. bias: [C] or None. activation: "silu", "swish" or None.
    A_log: H values. dt_bias: [H], or [H * dk] with a decay a channel. lower_bound: of KDA's safe
        gate, else None.
    Raises ValueError on another activation and on another shape of the convolution.
    """

    shape: RecurrentShape
    conv_weights: Tensor
    bias: Tensor | None
    activation: str | None
    A_log: Tensor
    dt_bias: Tensor
    lower_bound: float | None = None

    def __post_init__(self) -> None:
        if self.activation not in (None, "silu", "swish"):
            raise ValueError(f"activation must be silu, swish or None, got {self.activation!r}")
        expected = (self.shape.channels, self.shape.kernel_size)
        if self.conv_weights.shape != expected:
            raise ValueError(
                f"conv_weights must be {list(expected)}, got {list(self.conv_weights.shape)}"
            )

    @classmethod
    def gdn(cls, module: Any) -> RecurrentLayer:
        """The GDN layer that a module with `RadixLinearAttention`'s attributes describes
        (srt/layers/radix_linear_attention.py:48 @0.5.23).
        """
        return cls(
            RecurrentShape(
                k_heads=module.num_k_heads,
                v_heads=module.num_v_heads,
                k_dim=module.head_k_dim,
                v_dim=module.head_v_dim,
                kernel_size=module.conv_weights.shape[1],
            ),
            conv_weights=module.conv_weights,
            bias=module.bias,
            activation=module.activation,
            A_log=module.A_log,
            dt_bias=module.dt_bias,
        )

    def gates(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Log-decay and beta, see `gdn_gates` and `kda_gates`."""
        if self.shape.channel_decay:
            return kda_gates(self.A_log, self.dt_bias, a, b, self.lower_bound)
        return gdn_gates(self.A_log, self.dt_bias, a, b)


def verify(
    layer: RecurrentLayer,
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    state: Tensor,
    window: Tensor,
    metadata: TreeRecurrenceMetadata,
) -> tuple[Tensor, Stash]:
    """Outputs of all nodes, from the projections of the hidden states to the gated norm.

    mixed_qkv: [bs, N, C], before the convolution. a: [bs, N, H] or [bs, N, H * dk]. b: [bs, N, H].
    state: [bs, H, dv, dk] and window: [bs, C, K - 1], committed before the root; only read.
    Returns [bs, N, H, dv] in mixed_qkv's dtype, and the stash that `commit` takes.
    """
    silu = layer.activation is not None
    conv = tree_conv(mixed_qkv, window, layer.conv_weights, layer.bias, metadata, silu=silu)
    q, k, v = layer.shape.split(conv)
    out, keys, updates, log_decay = tree_recurrence(q, k, v, *layer.gates(a, b), state, metadata)
    return out, Stash(keys, updates, log_decay, mixed_qkv)


def commit(
    stash: Stash, state: Tensor, window: Tensor, metadata: TreeRecurrenceMetadata, node: Tensor
) -> tuple[Tensor, Tensor]:
    """State and window after `node`: the accepted leaf, or a node of its path to checkpoint.

    stash, state [..., bs, H, dv, dk], window [..., bs, C, K - 1]: of the same verification, with
    the same leading dimensions, such as layers. node: int64 [bs]; -1 returns the inputs' values.
    Nothing is written in place, so several nodes can be rebuilt from one verification.
    """
    return (
        path_state(state, stash.keys, stash.updates, stash.log_decay, metadata, node),
        path_window(stash.conv_inputs, window, metadata, node),
    )
