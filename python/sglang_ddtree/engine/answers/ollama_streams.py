"""Ollama's streams with the text of the last step, its counts and its errors.

``OllamaServing`` leaves out what arrived with the end of an answer, which is all that the last
step accepted, and the counts of the answer without a stream
(srt/entrypoints/ollama/serving.py:147,263@0.5.23). It also takes every chunk for the answer so
far, which ``--incremental-streaming-output`` makes untrue, and a failed request for a finished
one.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree.engine.options import is_running

if TYPE_CHECKING:
    from fastapi import Request
    from pydantic import BaseModel
    from sglang.srt.entrypoints.ollama.serving import OllamaServing
    from sglang.srt.managers.io_struct import GenerateReqInput

TARGET = "sglang.srt.entrypoints.ollama.serving.OllamaServing"
Handler = Callable[..., Awaitable[Any]]
# Model records of the line with a delta and of the last line, and the field that holds a text.
Lines = tuple[type["BaseModel"], type["BaseModel"], Callable[[str], dict[str, Any]]]


async def stream_chat(
    original: Handler,
    serving: OllamaServing,
    request: GenerateReqInput,
    raw_request: Request,
    model_name: str,
) -> Any:
    """``/api/chat``; runs around ``_stream_chat_response``."""
    if not _is_served_by_trees():
        return await original(serving, request, raw_request, model_name)
    from sglang.srt.entrypoints.ollama import protocol

    def message(text: str) -> dict[str, Any]:
        return {"message": protocol.OllamaMessage(role="assistant", content=text)}

    lines = (protocol.OllamaChatStreamResponse, protocol.OllamaChatResponse, message)
    return await _respond(serving, request, raw_request, model_name, lines)


async def stream_generate(
    original: Handler,
    serving: OllamaServing,
    request: GenerateReqInput,
    raw_request: Request,
    model_name: str,
) -> Any:
    """``/api/generate``; runs around ``_stream_generate_response``."""
    if not _is_served_by_trees():
        return await original(serving, request, raw_request, model_name)
    from sglang.srt.entrypoints.ollama import protocol

    def response(text: str) -> dict[str, Any]:
        return {"response": text}

    lines = (protocol.OllamaGenerateStreamResponse, protocol.OllamaGenerateResponse, response)
    return await _respond(serving, request, raw_request, model_name, lines)


def _is_served_by_trees() -> bool:
    return is_running()


async def _respond(
    serving: OllamaServing,
    request: GenerateReqInput,
    raw_request: Request,
    model_name: str,
    lines: Lines,
) -> Any:
    """The stream, or the error of a request that is refused before it begins."""
    from fastapi import HTTPException
    from fastapi.responses import ORJSONResponse, StreamingResponse

    stream = _stream(serving, request, raw_request, model_name, lines)
    try:
        first = await anext(stream)
    except ValueError as error:
        return ORJSONResponse({"error": str(error)}, status_code=400)

    async def body() -> AsyncIterator[bytes]:
        yield first
        try:
            async for line in stream:
                yield line
        except (ValueError, HTTPException) as error:
            yield _encode({"error": getattr(error, "detail", str(error))})

    return StreamingResponse(
        body(),
        media_type="application/x-ndjson",
        # As SGLang's other streams: a client that goes away ends its request.
        background=serving.tokenizer_manager.create_abort_task(request),
    )


async def _stream(
    serving: OllamaServing,
    request: GenerateReqInput,
    raw_request: Request,
    model_name: str,
    lines: Lines,
) -> AsyncIterator[bytes]:
    """One JSON object a line: a delta each, then an empty one with ``done`` and the counts.

    Raises:
        ValueError, HTTPException: the request failed, as SGLang raises them without a stream.
    """
    from sglang.srt.runtime_context import get_serving

    delta_line, last_line, field = lines
    is_delta = get_serving().incremental_streaming_output
    started = time.time_ns()
    sent = 0

    def head(text: str) -> dict[str, Any]:
        return {"model": model_name, "created_at": serving._get_timestamp(), **field(text)}

    async for chunk in serving.tokenizer_manager.generate_request(request, raw_request):
        meta = chunk["meta_info"]
        reason = meta.get("finish_reason")
        if reason:
            _raise_for_abort(reason)
        text = chunk.get("text") or ""
        delta = text if is_delta else text[sent:]
        sent = len(text)
        if delta or not reason:
            yield _encode(delta_line(**head(delta), done=False).model_dump())
        if reason:
            counts = {
                "total_duration": time.time_ns() - started,
                "prompt_eval_count": meta.get("prompt_tokens"),
                "eval_count": meta.get("completion_tokens"),
            }
            end = last_line(**head(""), done=True, done_reason="stop", **counts)
            yield _encode(end.model_dump())


def _raise_for_abort(reason: dict[str, Any]) -> None:
    from fastapi import HTTPException

    status = reason.get("status_code")
    if reason["type"] != "abort" or status is None:
        return
    message = reason.get("message") or "the request was aborted"
    if status == 400:
        raise ValueError(message)
    raise HTTPException(status_code=status, detail=message)


def _encode(line: dict[str, Any]) -> bytes:
    import orjson

    return orjson.dumps(line) + b"\n"


def register() -> None:
    HookRegistry.register(f"{TARGET}._stream_chat_response", stream_chat, HookType.AROUND)
    HookRegistry.register(f"{TARGET}._stream_generate_response", stream_generate, HookType.AROUND)
