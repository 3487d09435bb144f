"""What every attention layer of one verify step shares."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


def additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where ``visible``, ``-inf`` elsewhere."""
    zeros = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return zeros.masked_fill_(~visible, float("-inf"))


@dataclass(frozen=True)
class TreeAttentionMetadata:
    """Keys and visibility of one verify step, made once and shared by all layers.

    Row ``b`` of ``slots`` is a row of the request-to-token table: the slots of the
    ``prefix_lens[b]`` committed positions, then those of the ``N`` tree nodes in node order, then
    padding.

    Attributes:
        slots: int64 ``[bs, S]``, ``S >= max(prefix_lens) + N``.
        prefix_lens: int64 ``[bs]``.
        tree_mask: bool ``[bs, N, N]`` or ``[1, N, N]``; ``[b, i, j]`` says whether node ``i`` sees
            node ``j`` (an ancestor or itself).
        depth: int64 ``[bs, N]`` or ``[1, N]``, distance from the root. A sliding window is measured
            in positions, so two siblings have the same window.
    """

    slots: torch.Tensor
    prefix_lens: torch.Tensor
    tree_mask: torch.Tensor
    depth: torch.Tensor
    _masks: dict[int, torch.Tensor] = field(default_factory=dict, repr=False)
    _biases: dict[tuple[int, torch.dtype], torch.Tensor] = field(default_factory=dict, repr=False)

    def visible(self, window: int = -1) -> torch.Tensor:
        """Which keys each node sees, bool ``[bs, N, S]``.

        Args:
            window: keys more than ``window`` positions before a node are hidden; ``-1`` for none
                (the convention of ``RadixAttention.sliding_window_size``).
        """
        if window not in self._masks:
            self._masks[window] = self._build(window)
        return self._masks[window]

    def bias(self, window: int, dtype: torch.dtype) -> torch.Tensor:
        """:meth:`visible` as an additive mask ``[bs, N, S]``: 0 or ``-inf``."""
        if (window, dtype) not in self._biases:
            self._biases[window, dtype] = additive(self.visible(window), dtype)
        return self._biases[window, dtype]

    @property
    def live(self) -> torch.Tensor:
        """bool ``[bs, S]``: slots that hold a key of the prefix or of the tree."""
        num_keys, num_nodes = self.slots.shape[1], self.tree_mask.shape[1]
        key = torch.arange(num_keys, device=self.slots.device)
        return key < (self.prefix_lens + num_nodes)[:, None]

    def _build(self, window: int) -> torch.Tensor:
        bs, num_keys = self.slots.shape
        num_nodes = self.tree_mask.shape[1]
        key = torch.arange(num_keys, device=self.slots.device)
        node_of_key = key - self.prefix_lens[:, None]  # [bs, S], negative in the prefix
        in_prefix = (node_of_key < 0)[:, None]
        in_tree = (node_of_key < num_nodes)[:, None]
        index = node_of_key.clamp(0, num_nodes - 1)[:, None].expand(bs, num_nodes, num_keys)
        ancestor = self.tree_mask.expand(bs, -1, -1).gather(2, index)
        visible = in_prefix | (ancestor & in_tree)
        if window < 0:
            return visible
        depth = self.depth.expand(bs, -1)
        key_depth = torch.where(
            in_prefix[:, 0], node_of_key, depth.gather(1, index[:, 0])
        )  # position relative to the root, for prefix keys and nodes alike
        return visible & (depth[:, :, None] - key_depth[:, None] <= window)
