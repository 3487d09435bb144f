"""Kernel-backed operations: one folder each, with the torch reference that is their oracle."""
