"""What verification keeps of every node instead of its state and its convolution window."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class RecurrentShape:
    """Heads and widths of a recurrent layer, on one rank.

    k_heads (Hk), v_heads (H, a multiple of Hk), k_dim (dk), v_dim (dv), kernel_size (K) of the
    short convolution; channel_decay: a decay for each channel of the key (KDA), not for each head.
    """

    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    kernel_size: int = 4
    channel_decay: bool = False

    @property
    def channels(self) -> int:
        """C, the width of the convolution: queries, keys and values side by side."""
        return 2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim

    def split(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[..., C] -> queries and keys [..., Hk, dk], values [..., H, dv]."""
        width = self.k_heads * self.k_dim
        q, k, v = mixed.split([width, width, self.v_heads * self.v_dim], -1)
        q, k = (x.unflatten(-1, (self.k_heads, self.k_dim)) for x in (q, k))
        return q, k, v.unflatten(-1, (self.v_heads, self.v_dim))


@dataclass(frozen=True, eq=False)
class Stash:
    """Per-node record of one or more layers, from which the state of any node is rebuilt.

    keys: [..., bs, N, Hk, dk], as they enter the recurrence. updates: [..., bs, N, H, dv].
    log_decay: [..., bs, N, H] or [..., bs, N, H, dk]. All float32, whatever the model's dtype
        (float64 in float64 models).
    conv_inputs: [..., bs, N, C] in the model's dtype: inputs are copied, not computed with.

    A node of Qwen3.6-27B takes 54 KB a layer instead of the 3.2 MB of a state and a window.
    """

    keys: Tensor
    updates: Tensor
    log_decay: Tensor
    conv_inputs: Tensor

    @classmethod
    def allocate(
        cls,
        shape: RecurrentShape,
        leading: tuple[int, ...],
        *,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Stash:
        """An empty stash; `leading` is (layers, bs, N) or (bs, N), `dtype` the model's.

        On the "meta" device it costs nothing and still knows its size.
        """
        acc = torch.promote_types(dtype, torch.float32)
        decay = (shape.v_heads, shape.k_dim) if shape.channel_decay else (shape.v_heads,)
        return cls(
            keys=torch.zeros(*leading, shape.k_heads, shape.k_dim, dtype=acc, device=device),
            updates=torch.zeros(*leading, shape.v_heads, shape.v_dim, dtype=acc, device=device),
            log_decay=torch.zeros(*leading, *decay, dtype=acc, device=device),
            conv_inputs=torch.zeros(*leading, shape.channels, dtype=dtype, device=device),
        )

    @property
    def nbytes(self) -> int:
        """Memory of the stash in bytes."""
        return sum(x.numel() * x.element_size() for x in self._tensors())

    def layer(self, index: int) -> Stash:
        """View of one layer of a stash with a leading layer dimension."""
        return Stash(*(x[index] for x in self._tensors()))

    def requests(self, bs: int) -> Stash:
        """View of the first `bs` requests."""
        return Stash(
            keys=self.keys.narrow(-4, 0, bs),
            updates=self.updates.narrow(-4, 0, bs),
            log_decay=self.log_decay.narrow(self.conv_inputs.dim() - 3, 0, bs),
            conv_inputs=self.conv_inputs.narrow(-3, 0, bs),
        )

    def store(self, other: Stash) -> None:
        """Copy a stash of the same shapes into this one, so that graphs see one address."""
        for mine, theirs in zip(self._tensors(), other._tensors(), strict=True):
            mine.copy_(theirs)

    def _tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]
