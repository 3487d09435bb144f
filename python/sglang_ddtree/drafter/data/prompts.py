"""Prompts of a JSONL file, each line one of ``{"messages": [...]}`` or ``{"prompt": "..."}``."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_ddtree.drafter.errors import DrafterError

_ROLES = ("system", "user", "assistant", "tool", "developer")


@dataclass(frozen=True)
class Prompt:
    """What the target is asked.

    Attributes:
        line: its line in the file, from 1.
        messages: a chat that ends with the user's turn; None for plain text.
        text: a prompt to continue as it is; None for a chat.
    """

    line: int
    messages: tuple[dict[str, Any], ...] | None = None
    text: str | None = None


def read_prompts(path: Path, limit: int | None = None) -> list[Prompt]:
    """All prompts of a file.

    Args:
        limit: the first so many.

    Raises:
        DrafterError: naming the first line that is no prompt; or there is no prompt at all.
    """
    prompts = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DrafterError(f"--prompts: {error.strerror} ({path})") from error
    for number, raw in enumerate(lines, 1):
        if not raw.strip():
            continue
        try:
            prompts.append(_prompt(number, json.loads(raw.decode("utf-8"))))
        except (ValueError, UnicodeDecodeError) as error:
            raise DrafterError(f"{path}, line {number}: {error}") from error
        if limit is not None and len(prompts) == limit:
            break
    if not prompts:
        raise DrafterError(f"{path} holds no prompts")
    return prompts


def _prompt(line: int, record: Any) -> Prompt:
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    if "messages" in record:
        return Prompt(line, messages=_messages(record["messages"]))
    if isinstance(record.get("prompt"), str) and record["prompt"]:
        return Prompt(line, text=record["prompt"])
    raise ValueError('needs "messages" (a chat) or "prompt" (a text that is not empty)')


def _messages(messages: Any) -> tuple[dict[str, Any], ...]:
    """The chat up to its last turn of the user's: answers in the file are not the target's."""
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise ValueError('"messages" must be a list of objects')
    for message in messages:
        if message.get("role") not in _ROLES or not isinstance(message.get("content"), str):
            raise ValueError('each message needs a "role" and a "content" of text')
    while messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not messages:
        raise ValueError("the chat has no turn to answer")
    return tuple({"role": m["role"], "content": m["content"]} for m in messages)


def digest(path: Path) -> str:
    """Hash of a prompts file, by which a resumed run knows it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
