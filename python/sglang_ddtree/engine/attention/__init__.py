"""Attention backend ``ddtree``: tree verification by this project's kernels.

SGLang keeps one attention backend for prefill and one for decoding, and lets verification use the
second (``--speculative-attention-mode decode``). Under DDTREE a server decodes by verifying trees
and in no other way, so ``ddtree`` stands in that second place: prefill stays with the backend that
the user chose, and the drafter keeps its own.

``selection`` decides at start-up whether ``ddtree`` verifies, ``backend`` is what SGLang calls,
``buffers`` what all layers of a step share, at fixed addresses.
"""
