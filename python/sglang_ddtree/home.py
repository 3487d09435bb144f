"""Where things that outlive a checkout are kept: environments, compiled kernels, a model."""

from __future__ import annotations

import os
from pathlib import Path


def folder() -> Path:
    """``SGLANG_DDTREE_HOME``, else ``sglang-ddtree`` in the user's cache, as in scripts/env.sh."""
    if home := os.environ.get("SGLANG_DDTREE_HOME"):
        return Path(home)
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "sglang-ddtree"
