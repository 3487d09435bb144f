"""HTTP 400 for what DDTREE can't serve, in the server's own process and before a stream begins.

``TokenizerManager.generate_request`` (srt/managers/tokenizer_manager.py:895@0.5.23) is where every
API's requests meet. Some APIs call it only once they have sent the 200 of a stream; those are
checked earlier too, where each has made its request into a ``GenerateReqInput``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree.engine.options import is_running

TARGET = "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request"
# After the tokenizer has run (tokenizer_manager.py:1307@0.5.23): whether there is a token at all.
TOKENS = "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request"
# /generate, /vertex_generate (srt/entrypoints/http_server.py:943@0.5.23).
NATIVE = "sglang.srt.entrypoints.http_server.serve_generate_request"
# /v1/chat/completions, /invocations, /v1/messages (openai/serving_chat.py:1276@0.5.23).
CHAT = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat._convert_to_internal_request"
# /v1/responses (openai/serving_responses.py:3060@0.5.23).
RESPONSES = (
    "sglang.srt.entrypoints.openai.serving_responses.OpenAIServingResponses"
    "._generate_with_builtin_tools"
)
# /api/chat, /api/generate (ollama/serving.py:65, 177@0.5.23).
OLLAMA = "sglang.srt.entrypoints.ollama.serving.OllamaServing"

Handler = Callable[..., Awaitable[Any]]


def check_any(manager: Any, obj: Any, request: Any = None) -> None:
    """Check a request that is about to be served; embeddings are not generated."""
    from sglang.srt.managers.io_struct import GenerateReqInput

    from sglang_ddtree.engine.requests import entrance

    if isinstance(obj, GenerateReqInput) and is_running():
        entrance.check(manager, obj, request)


def check_tokens(result: None, manager: Any, obj: Any, input_ids: Any) -> None:
    """Refuse a text without tokens, unless media or a session bring some."""
    from sglang_ddtree.engine.requests import entrance, prompts
    from sglang_ddtree.engine.requests.bad_request import BadRequest

    if input_ids is None or len(input_ids) or not is_running():
        return
    if not entrance.brings_tokens(manager, obj):
        raise BadRequest(prompts.EMPTY)


async def check_native(original: Handler, obj: Any, request: Any) -> Any:
    from sglang.srt.entrypoints import http_server

    from sglang_ddtree.engine.requests.bad_request import BadRequest

    try:
        check_any(http_server._global_state.tokenizer_manager, obj, request)
    except BadRequest as refusal:
        return http_server._create_error_response(refusal)
    return await original(obj, request)


def check_chat(result: Any, serving: Any, request: Any, raw_request: Any = None) -> None:
    check_any(serving.tokenizer_manager, result[0], raw_request)


def check_responses(
    serving: Any,
    request_id: str,
    request_prompt: Any,
    adapted_request: Any,
    *rest: Any,
    raw_request: Any = None,
    **options: Any,
) -> None:
    check_any(serving.tokenizer_manager, adapted_request, raw_request)


async def check_ollama(original: Handler, serving: Any, request: Any, raw_request: Any) -> Any:
    """Refuse by Ollama's fields; SGLang would drop ``format`` without a word."""
    from sglang_ddtree.engine.requests import entrance, features
    from sglang_ddtree.engine.requests.bad_request import BadRequest

    if not is_running():
        return await original(serving, request, raw_request)
    sampling = serving._convert_options_to_sampling_params(request.options)
    asked = {**sampling, "json_schema": request.format}
    entrance.refuse(features.of_sampling([asked], entrance.deterministic()), raw_request)
    entrance.check_sampling([sampling])
    try:
        return await original(serving, request, raw_request)
    except ValueError as error:  # a prompt that is too long, a parameter out of range
        raise BadRequest(str(error)) from error


def name_seed(params: dict[str, Any], serving: Any, options: Any = None) -> None:
    """Give Ollama's seed the name that SGLang's sampling parameters have for it."""
    if "seed" in params:
        params["sampling_seed"] = params.pop("seed")


def register() -> None:
    HookRegistry.register(TARGET, check_any, HookType.BEFORE)
    HookRegistry.register(TOKENS, check_tokens, HookType.AFTER)
    HookRegistry.register(NATIVE, check_native, HookType.AROUND)
    HookRegistry.register(CHAT, check_chat, HookType.AFTER)
    HookRegistry.register(RESPONSES, check_responses, HookType.BEFORE)
    HookRegistry.register(
        f"{OLLAMA}._convert_options_to_sampling_params", name_seed, HookType.AFTER
    )
    HookRegistry.register(f"{OLLAMA}.handle_chat", check_ollama, HookType.AROUND)
    HookRegistry.register(f"{OLLAMA}.handle_generate", check_ollama, HookType.AROUND)
