"""The machine: GPUs, links, NUMA nodes, cores."""
