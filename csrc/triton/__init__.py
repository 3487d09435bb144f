"""Triton kernels; each is launched by the `triton.py` beside its reference in `sglang_ddtree`."""
