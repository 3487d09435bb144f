"""What a refused request is told."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_ddtree.engine.requests.features import MIN_P


def unsupported(names: Sequence[str]) -> str:
    """Refusal of features, named as the client named them."""
    refused = [name for name in names if name != MIN_P]
    reasons = []
    if refused:
        reasons.append(
            f"DDTREE does not support {', '.join(refused)} yet; remove it from the request, or "
            "serve without --speculative-algorithm DDTREE."
        )
    if MIN_P in names:
        reasons.append(
            "min_p does not work with --enable-deterministic-inference; remove it from the "
            "request, or serve without that flag."
        )
    return " ".join(reasons)
