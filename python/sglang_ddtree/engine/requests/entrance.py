"""The check of a request in the process that received it, before anything is sent back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sglang_ddtree.engine.options import is_running
from sglang_ddtree.engine.requests import features, message, prompts, sampling, words
from sglang_ddtree.engine.requests.bad_request import BadRequest

if TYPE_CHECKING:
    from fastapi import Request
    from sglang.srt.managers.io_struct import GenerateReqInput


def applies() -> bool:
    """Whether this server decodes with trees."""
    return is_running()


def deterministic() -> bool:
    """Whether SGLang's sampler gives every request a seed, as its ``Sampler`` decides."""
    from sglang.srt.runtime_context import get_exec

    settings = get_exec().deterministic
    return settings.enable_deterministic_inference or settings.rl_on_policy_target is not None


def check(manager: Any, obj: GenerateReqInput, request: Request | None) -> None:
    """Stop a request that DDTREE can't serve.

    Args:
        manager: SGLang's ``TokenizerManager``.
        obj: the request as its API has converted it; single or a batch, not normalised yet.
        request: what came by HTTP, if it did.

    Raises:
        BadRequest: with what to change.
    """
    refuse(features.of_request(obj, deterministic()), request)
    if request is not None:  # Python's own callers may send what converts itself
        check_sampling(features.each(obj.sampling_params))
        if obj.positional_embed_overrides is not None:
            raise BadRequest("positional_embed_overrides are tensors, which JSON does not carry")
    vocab_size = manager.model_config.vocab_size
    if obj.text is None and (found := prompts.problem(obj.input_ids, vocab_size)):
        raise BadRequest(found)
    if brings_tokens(manager, obj):
        return
    if obj.text is None and obj.input_ids == []:
        raise BadRequest(prompts.EMPTY)
    if obj.text is not None and manager.tokenizer is not None:
        check_texts(manager.tokenizer, obj.text)


def brings_tokens(manager: Any, obj: Any) -> bool:
    """Whether a prompt without tokens may get some from its media or its session."""
    has_media = manager.mm_processor is not None and obj.contains_mm_input()
    return has_media or bool(getattr(obj, "session_params", None))


def check_texts(tokenizer: Any, texts: str | list[str]) -> None:
    """Raise ``BadRequest`` for a text that has no tokens."""
    for text in [texts] if isinstance(texts, str) else texts:
        if isinstance(text, str) and not text.strip() and not tokenizer.encode(text):
            raise BadRequest(prompts.EMPTY)


def check_sampling(every: Iterable[Mapping[str, Any]]) -> None:
    """Raise ``BadRequest`` for sampling parameters that SGLang can't hold."""
    for params in every:
        if found := sampling.problem(params):
            raise BadRequest(found)


def refuse(found: list[str], request: Request | None) -> None:
    """Raise ``BadRequest`` for features under SGLang's names, if there are any."""
    if not found:
        return
    path = None if request is None else request.url.path
    body = getattr(request, "_json", None)  # parsed by then, and kept by Starlette
    raise BadRequest(message.unsupported([words.name(name, path, body) for name in found]))
