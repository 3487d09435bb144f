"""Attention of draft-tree nodes over a paged prefix and their own ancestors."""

from sglang_ddtree.ops.tree_attention.latent import (
    attend_latent_sdpa,
    latent_tree_attention,
    latent_tree_attention_sdpa,
)
from sglang_ddtree.ops.tree_attention.metadata import TreeAttentionMetadata, additive
from sglang_ddtree.ops.tree_attention.reference import attend, tree_attention
from sglang_ddtree.ops.tree_attention.sdpa import attend_sdpa, tree_attention_sdpa

__all__ = [
    "TreeAttentionMetadata",
    "additive",
    "attend",
    "attend_latent_sdpa",
    "attend_sdpa",
    "latent_tree_attention",
    "latent_tree_attention_sdpa",
    "tree_attention",
    "tree_attention_sdpa",
]
