"""Attention of draft-tree nodes over a paged prefix and their own ancestors."""

from sglang_ddtree.ops.tree_attention.metadata import TreeAttentionMetadata
from sglang_ddtree.ops.tree_attention.reference import attend, tree_attention

__all__ = ["TreeAttentionMetadata", "attend", "tree_attention"]
