"""Recurrent (GDN) layers of the target: what one verify step keeps of them, and its commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_ddtree.engine.recurrent.fused import FusedLayers
from sglang_ddtree.engine.recurrent.snapshots import SnapshotLayers
from sglang_ddtree.engine.recurrent.stashed import StashedLayers

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner

    from sglang_ddtree.engine.options import TreeOptions
    from sglang_ddtree.engine.startup.kernels import Kernels

RecurrentLayers = StashedLayers | SnapshotLayers

__all__ = ["FusedLayers", "RecurrentLayers", "SnapshotLayers", "StashedLayers", "attach"]


def attach(
    model_runner: ModelRunner, options: TreeOptions, kernels: Kernels
) -> RecurrentLayers | None:
    """Make the target's recurrent layers verify trees; ``None`` for a target without any."""
    from sglang.srt.configs.hybrid_arch import mambaish_config

    hybrid = model_runner.attn_backend
    config = mambaish_config(model_runner.model_config)
    if config is None:
        return None
    if options.recurrent == "snapshot":
        return SnapshotLayers(hybrid)
    arguments = (
        hybrid.linear_attn_backend,
        config.mamba2_cache_params,
        options.verify_width,
        model_runner.dtype,
    )
    if kernels.verify is None or kernels.commit is None or kernels.verify.kernel == "torch":
        layers = StashedLayers(*arguments)
    else:
        layers = FusedLayers(*arguments, kernels.verify, kernels.commit)
    hybrid.linear_attn_backend.tree_layers = layers
    return layers
