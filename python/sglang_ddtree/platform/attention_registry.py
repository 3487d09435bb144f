"""The CPU platform's attention backend in SGLang's registry, and which class of it a model gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner

    from sglang_ddtree.platform.attention import TorchTreeAttnBackend


def create_backend(model_runner: ModelRunner) -> TorchTreeAttnBackend:
    """The backend for a model's kind of cache: K/V heads, or one latent row a token."""
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool

    from sglang_ddtree.platform import attention

    if not isinstance(model_runner.token_to_kv_pool, MLATokenToKVPool):
        return attention.TorchTreeAttnBackend(model_runner)
    from sglang_ddtree.platform import mla_backend

    mla_backend.register()
    return mla_backend.TorchTreeMLABackend(model_runner)


def register() -> None:
    """Make the backend selectable by name, for targets and drafters."""
    from sglang.srt.arg_groups import choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    from sglang_ddtree.platform.cpu import ATTENTION_BACKEND

    choices.add_attention_backend_choices([ATTENTION_BACKEND])
    choices.add_draft_attention_backend_choices([ATTENTION_BACKEND])
    choices.add_deterministic_attention_backend_choices([ATTENTION_BACKEND])
    choices.add_radix_supported_deterministic_attention_backend_choices([ATTENTION_BACKEND])
    register_attention_backend(ATTENTION_BACKEND)(create_backend)
