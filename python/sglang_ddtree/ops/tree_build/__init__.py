"""Growing, accepting and committing trees by kernels; the reference is `sglang_ddtree.tree`."""
