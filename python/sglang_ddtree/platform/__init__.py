"""A CPU platform for stock SGLang, so that the real server runs without a GPU.

SGLang's built-in CPU engine needs a CPU build of ``sgl-kernel`` that no package index carries.
This platform enters through SGLang's out-of-tree platform seam instead
(``sglang.srt.platforms``, srt/platforms/interface.py@0.5.23) and brings torch versions of the few
device kernels the server calls. It is the project's default and test bed where there is no
accelerator, and it steps aside wherever there is one.
"""

from __future__ import annotations

import os

import torch

_CPU_PLATFORM = "sglang_ddtree.platform.cpu.TorchCpuPlatform"


def activate() -> str | None:
    """Entry point of group ``sglang.srt.platforms``.

    Returns the platform class path on a machine without an accelerator, ``None`` elsewhere and
    where the user asked for SGLang's own CPU engine (``SGLANG_USE_CPU_ENGINE=1``).
    """
    if torch.accelerator.is_available() or os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        return None
    return _CPU_PLATFORM
