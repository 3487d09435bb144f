// Launchers of the gated delta rule over a tree; contract in ddtree/gated_delta.cuh.
#include "ddtree/launch.cuh"

DDTREE_GATED_DELTA_KERNELS(DDTREE_EXPORT)
