"""Recurrent layers over a draft tree: the gated delta rule (GDN, KDA) and its short convolution.

`verify` runs one layer over all nodes of a tree, each from its own ancestors, and stashes a few
vectors a node; `commit` rebuilds the state and the convolution window of one path from them.
`oracle` holds the same layer walked node by node.
"""

from __future__ import annotations

from sglang_ddtree.ops.gdn_tree.conv import path_window, tree_conv
from sglang_ddtree.ops.gdn_tree.gates import gdn_gates, kda_gates
from sglang_ddtree.ops.gdn_tree.layer import RecurrentLayer, commit, verify
from sglang_ddtree.ops.gdn_tree.metadata import TreeRecurrenceMetadata
from sglang_ddtree.ops.gdn_tree.reference import Recurrence, path_state, tree_recurrence
from sglang_ddtree.ops.gdn_tree.stash import RecurrentShape, Stash

__all__ = [
    "Recurrence",
    "RecurrentLayer",
    "RecurrentShape",
    "Stash",
    "TreeRecurrenceMetadata",
    "commit",
    "gdn_gates",
    "kda_gates",
    "path_state",
    "path_window",
    "tree_conv",
    "tree_recurrence",
    "verify",
]
