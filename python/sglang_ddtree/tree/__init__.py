"""The draft tree: what the drafter proposes, the tree that grows from it, what of it is accepted.

Plain torch: tensors in, tensors out, on the device of the inputs and without a host round trip.
`oracle` holds the same two algorithms, growth and acceptance, in plain Python.
"""

from __future__ import annotations

from sglang_ddtree.tree.accept import Acceptance, accept
from sglang_ddtree.tree.candidates import Candidates
from sglang_ddtree.tree.draft_tree import DraftTree, validate
from sglang_ddtree.tree.grow import grow
from sglang_ddtree.tree.policy import MAX_BUDGET, GrowthPolicy
from sglang_ddtree.tree.topology import ancestor_words, pack_bits, unpack_bits

__all__ = [
    "MAX_BUDGET",
    "Acceptance",
    "Candidates",
    "DraftTree",
    "GrowthPolicy",
    "accept",
    "ancestor_words",
    "grow",
    "pack_bits",
    "unpack_bits",
    "validate",
]
