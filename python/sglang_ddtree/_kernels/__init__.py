"""Where the kernels' sources are: `csrc/` of a checkout, or the copy that setup.py packs.

Both hold the same folders, so `sglang_ddtree._kernels.triton` is one name for the Triton kernels
and `SOURCES` one path for the CUDA headers.
"""

from __future__ import annotations

from pathlib import Path

_PACKED = Path(__file__).parent / "csrc"
SOURCES = _PACKED if _PACKED.is_dir() else Path(__file__).parents[3] / "csrc"

__path__.append(str(SOURCES))
