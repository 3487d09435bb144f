"""``ddtree`` in SGLang's registry of attention backends, and which backend of a runner verifies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_ddtree.engine.attention.selection import NAME
from sglang_ddtree.engine.config_error import DDTreeConfigError
from sglang_ddtree.engine.options import running_options
from sglang_ddtree.ops.dispatch import MLA

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner

    from sglang_ddtree.engine.attention.backend import DDTreeAttnBackend


def verifying_backend(backend: Any) -> Any:
    """The backend of attention layers in a verify forward, inside SGLang's wrappers.

    Raises:
        DDTreeConfigError: it is none that verifies trees, or a wrapper whose layers go elsewhere.
    """
    from sglang.srt.layers.attention.hybrid_attn_backend import HybridAttnBackend
    from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    if isinstance(backend, HybridLinearAttnBackend):
        backend = backend.full_attn_backend
    if isinstance(backend, HybridAttnBackend):
        backend = backend._select_backend(ForwardMode.TARGET_VERIFY)
    if getattr(backend, "reads_tree", False) or isinstance(backend, TritonAttnBackend):
        return backend
    raise DDTreeConfigError(
        f"attention in this target runs through SGLang's {type(backend).__name__}, in which trees "
        "are not verified: serve it without speculation"
    )


def reads_tree(backend: Any) -> bool:
    """Whether verification takes the tree itself, so that no custom mask is laid out."""
    return getattr(verifying_backend(backend), "reads_tree", False)


def create_backend(runner: ModelRunner) -> DDTreeAttnBackend:
    """What SGLang's registry calls for the name; SGLang puts it in the place for decoding."""
    from sglang_ddtree.engine.attention.backend import DDTreeAttnBackend
    from sglang_ddtree.engine.startup.kernels import kernels_of

    kernels = kernels_of(runner, running_options())
    if kernels.attention.operation == MLA:
        _register_with_deepseek()
    return DDTreeAttnBackend(runner, kernels.attention, kernels.width)


def _register_with_deepseek() -> None:
    """Have DeepSeek's layers hand over absorbed queries and whole latent rows."""
    from sglang.srt.models.deepseek_common.attention_backend_handler import (
        AttentionBackendRegistry,
    )
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import (
        AttnForwardMethod,
    )

    AttentionBackendRegistry.register(NAME, lambda attention, batch: AttnForwardMethod.MLA)


def register() -> None:
    """Make the name known to SGLang's flags and to its registry."""
    from sglang.srt.arg_groups import choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    choices.add_attention_backend_choices([NAME])
    register_attention_backend(NAME)(create_backend)
