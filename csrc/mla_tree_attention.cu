// Launchers of tree attention over a latent cache; contract in ddtree/mla_tree_attention.cuh.
#include "ddtree/launch.cuh"

DDTREE_MLA_KERNELS(DDTREE_EXPORT)
