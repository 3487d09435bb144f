"""The parts of ``benchmark/soak.py``."""
