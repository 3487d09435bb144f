"""Which nodes of all that the drafter's candidates span become the tree."""

from __future__ import annotations

from dataclasses import dataclass

# Ancestor masks are four 64-bit words at most: the root and 255 nodes.
MAX_BUDGET = 255


@dataclass(frozen=True)
class GrowthPolicy:
    """What decides about the nodes of a tree, besides the candidates themselves.

    budget: nodes below the root at most.
    spine: whether the chain of first candidates takes the nodes 1..D, likely or not, before
        best-first search fills the other budget - D.

    A policy of one more kind is one more field here, one branch in `grow`, `grow_oracle` and the
    kernel of csrc/triton/grow.py, and a line in `ops.dispatch` for kernels that lack it. Raises
    ValueError for a negative budget.
    """

    budget: int
    spine: bool = True

    def __post_init__(self) -> None:
        if self.budget < 0:
            raise ValueError(f"budget must not be negative, got {self.budget}")

    @property
    def nodes(self) -> int:
        """N, the root and the budget."""
        return self.budget + 1

    def is_chain(self, depths: int) -> bool:
        """Whether trees over `depths` positions are prefixes of the chain of first candidates: then
        node i is the parent of node i + 1, and causal attention is the tree's mask.
        """
        return self.spine and self.budget <= depths
