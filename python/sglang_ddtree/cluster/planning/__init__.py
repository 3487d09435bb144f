"""The plan: groups of GPUs, memory, cost, prediction, and the reasons."""
