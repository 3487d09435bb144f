"""``sglang-ddtree plan``, ``launch`` and ``probe``, and what they print."""
