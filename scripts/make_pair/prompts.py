"""Held-out prompts: generated from seeds, and cut from library files, that training never saw."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from . import documents
from .recipe import Recipe

CHATS, MODULES, LIBRARY = 32, 32, 12


@cache
def trained_chats(recipe: Recipe) -> set[str]:
    """Every generated chat that the target was trained on, up to each of its answers."""
    answers, chats = documents.render_chat([], open_turn=True), set()
    for kind, text in documents.generated_documents(recipe.seed, recipe.generated_documents):
        if kind == "chat":
            turns = text.split(answers)[:-1]
            chats.update(
                "".join(turn + answers for turn in turns[: i + 1]) for i in range(len(turns))
            )
    return chats


def _chat(rng: Random, trained: set[str]) -> dict[str, Any]:
    while True:
        *messages, answer = documents.chat_messages(rng)
        text = documents.render_chat(messages, open_turn=True)
        if len(answer["content"]) >= 200 and text not in trained:
            return {"kind": "chat", "prompt": text, "messages": messages}


def _module(rng: Random) -> dict[str, Any]:
    text = documents.module(rng)
    while len(text) < 1200:
        text = documents.module(rng)
    return {"kind": "module", "prompt": _cut(text[: rng.randint(300, 800)])}


def _library(rng: Random, sources: list[str]) -> dict[str, Any]:
    text = rng.choice(sources)
    start = text.index("\n", rng.randrange(len(text) // 2)) + 1
    return {"kind": "stdlib", "prompt": _cut(text[start : start + 600])}


def _cut(text: str) -> str:
    """Up to the end of the last whole line, which is where an editor asks for a continuation."""
    return text[: text.rindex("\n") + 1]


def held_out_prompts(recipe: Recipe) -> list[dict[str, Any]]:
    """Records of ``id``, ``kind``, ``prompt`` and, for chats, ``messages``."""
    sources = [text for text in documents.stdlib_documents(held_out=True) if len(text) > 4000]
    trained, prompts = trained_chats(recipe), []
    for number in range(CHATS + MODULES + LIBRARY):
        rng = Random(f"held-out/{recipe.seed}/{number}")
        if number < CHATS:
            prompt = _chat(rng, trained)
        elif number < CHATS + MODULES:
            prompt = _module(rng)
        else:
            prompt = _library(rng, sources)
        prompts.append({"id": f"{prompt['kind']}-{number:02d}", **prompt})
    return prompts


def write_prompts(recipe: Recipe, path: Path) -> None:
    lines = [json.dumps(prompt) + "\n" for prompt in held_out_prompts(recipe)]
    path.write_text("".join(lines))
