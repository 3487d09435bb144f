"""How each HTTP API names the features that SGLang's requests carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_LOGPROBS = {"return_logprob": ("logprobs",)}
_LENGTH = {"min_new_tokens": ("min_tokens",)}
_TOOLS = ("tool_choice", "tools")
_WHOLE = ("this endpoint",)
# By path; for each feature the fields that ask for it, the first that a request sets is named.
# A feature that is not listed has SGLang's own name there.
_CHAT: Mapping[str, Sequence[str]] = {
    **_LOGPROBS,
    **_LENGTH,
    "json_schema": ("response_format", *_TOOLS),
    "structural_tag": ("response_format", *_TOOLS),
    "ebnf": ("ebnf", *_TOOLS),
    "lora_path": ("lora_path", "model"),
}
_COMPLETION: Mapping[str, Sequence[str]] = {
    **_LOGPROBS,
    **_LENGTH,
    "json_schema": ("response_format", "json_schema"),
    "structural_tag": ("response_format",),
    "lora_path": ("lora_path", "model"),
}
_MESSAGES: Mapping[str, Sequence[str]] = {
    "json_schema": ("output_config.format", *_TOOLS),
    "structural_tag": ("output_config.format", *_TOOLS),
    "ebnf": _TOOLS,
    "lora_path": ("model",),
}
_RESPONSES: Mapping[str, Sequence[str]] = {
    "return_logprob": ("include",),
    "json_schema": ("text.format", *_TOOLS),
    "structural_tag": ("text.format", *_TOOLS),
    "ebnf": _TOOLS,
    "lora_path": ("model",),
}
_OLLAMA: Mapping[str, Sequence[str]] = {
    "json_schema": ("format",),
    "frequency_penalty": ("options.frequency_penalty",),
    "presence_penalty": ("options.presence_penalty",),
}
_SCORING: Mapping[str, Sequence[str]] = {"return_logprob": _WHOLE}
_APIS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "/v1/chat/completions": _CHAT,
    "/invocations": _CHAT,
    "/v1/completions": _COMPLETION,
    "/v1/messages": _MESSAGES,
    "/v1/responses": _RESPONSES,
    "/api/chat": _OLLAMA,
    "/api/generate": _OLLAMA,
    "/v1/score": _SCORING,
    "/v1/decisions": _SCORING,
    "/v1/systemone": _SCORING,
    "/v1/rerank": _SCORING,
}
# Values by which a client says that it does not ask for anything.
_NOTHING: tuple[Any, ...] = (
    *(None, "auto", "none"),
    *({"type": "auto"}, {"type": "none"}, {"type": "text"}),
)


def name(feature: str, path: str | None, body: Any) -> str:
    """The field by which a request asks for ``feature``, in the words of the API called.

    Args:
        feature: SGLang's name.
        path: of the endpoint; ``None`` for a request that came by Python.
        body: the JSON that was sent, as far as it is known.
    """
    fields = _APIS.get(path or "", {}).get(feature, (feature,))
    asked = (field for field in fields if _value(body, field) not in _NOTHING)
    field = next(asked, fields[0])
    return f"LoRA adapters ({field})" if feature == "lora_path" else field


def _value(body: Any, field: str) -> Any:
    for key in field.split("."):
        body = body.get(key) if isinstance(body, dict) else None
    return body
