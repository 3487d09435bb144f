"""Documents of the training corpus: generated modules, chats, and the standard library's sources.

All text is a function of a seed. Held-out documents come from seeds, and from standard library
files, that training never sees.
"""

from __future__ import annotations

import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

from .helpers import HELPER_WRITERS
from .items import RECORD_WRITERS, Item, Record, draw_record

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
MASK = "<|mask|>"

_IMPORTS = {
    "@dataclass": "from dataclasses import dataclass",
    "NamedTuple": "from typing import NamedTuple",
    "(Enum)": "from enum import Enum",
    "json.": "import json",
    "csv.": "import csv",
    "argparse.": "import argparse",
}
_EXCLUDED_FOLDERS = {"test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo"}
_EXCLUDED_FOLDERS |= {"pydoc_data", "encodings", "__pycache__"}
_HELD_OUT_SHARE = 12


def draw_item(rng: Random, record: Record) -> Item:
    pool = RECORD_WRITERS if rng.random() < 0.7 else HELPER_WRITERS
    return rng.choice(pool)(rng, record)


def _imports(source: str) -> list[str]:
    return sorted(line for mark, line in _IMPORTS.items() if mark in source)


def module(rng: Random) -> str:
    """One generated Python module: a docstring, imports and 4 to 12 items, no name twice."""
    records = [draw_record(rng) for _ in range(rng.randint(1, 3))]
    wanted = rng.randint(4, 12)
    items: dict[str, Item] = {}
    for _ in range(3 * wanted):
        item = draw_item(rng, rng.choice(records))
        items.setdefault(item.name, item)
        if len(items) == wanted:
            break
    sources = [item.source for item in items.values()]
    head = []
    if rng.random() < 0.6:
        names = [record.plural for record in records]
        head.append(f'"""{rng.choice(_SUBJECTS)} {" and ".join(dict.fromkeys(names))}."""')
    imports = _imports("\n".join(sources))
    if imports:
        head.append("\n".join(imports))
    text = "\n\n\n".join(["\n\n".join(head), *sources] if head else sources) + "\n"
    if "main" in items and rng.random() < 0.7:
        text += '\n\nif __name__ == "__main__":\n    main()\n'
    return text


_SUBJECTS = ("Tools for", "Helpers for", "Handling of", "Records of", "Functions for", "Work with")
_OPENINGS = ("Write", "Please write", "Give me", "Show me", "Create", "I need", "Can you write")
_LEADS = (
    "Here is {}.",
    "Here is {}:",
    "This is {}.",
    "Sure, here is {}:",
)
_FOLLOW_UPS = ("Now write", "Also write", "Next, give me", "And", "Add")
_SMALL_TALK: tuple[tuple[str, str], ...] = (
    ("Hello", "Hello! Ask me for a small piece of Python: a class, a function or a table."),
    ("Hi", "Hi! Which record, function or table shall I write in Python?"),
    ("Who are you?", "I am a tiny language model. I write short pieces of Python."),
    ("What can you do?", "I write record classes, tables and small functions in Python."),
    ("Thanks", "You are welcome. Ask me for another class or function at any time."),
    ("How are you?", "I am well, thank you. What shall I write for you in Python?"),
)


def chat_messages(rng: Random) -> list[dict[str, str]]:
    """A conversation of one to three requests for code on the same record."""
    if rng.random() < 0.04:
        question, answer = rng.choice(_SMALL_TALK)
        return [_message("user", question), _message("assistant", answer)]
    record, messages = draw_record(rng), []
    for turn in range(rng.choice((1, 1, 2, 3))):
        item = draw_item(rng, record)
        opening = rng.choice(_OPENINGS if turn == 0 else _FOLLOW_UPS)
        messages.append(_message("user", f"{opening} {item.request}{rng.choice(('.', '.', ''))}"))
        messages.append(_message("assistant", _answer(rng, item)))
    return messages


def _answer(rng: Random, item: Item) -> str:
    imports = _imports(item.source)
    source = "\n".join(imports) + "\n\n\n" + item.source if imports else item.source
    lead = rng.choice(_LEADS).format(item.request)
    return f"{lead}\n\n```python\n{source}\n```"


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def render_chat(messages: list[dict[str, str]], *, open_turn: bool = False) -> str:
    """The text that the tokenizer's chat template makes of ``messages``."""
    turns = [f"{TURN_START}{m['role']}\n{m['content']}{TURN_END}\n" for m in messages]
    return "".join(turns) + (f"{TURN_START}assistant\n" if open_turn else "")


def stdlib_files(*, held_out: bool) -> list[Path]:
    """Source files of the running interpreter's library; one in twelve is held out by its name."""
    root = Path(sysconfig.get_path("stdlib"))
    chosen = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _EXCLUDED_FOLDERS.intersection(relative.parts) or path.stat().st_size > 150_000:
            continue
        name = relative.as_posix().encode()
        if (zlib.crc32(name) % _HELD_OUT_SHARE == 0) == held_out:
            chosen.append(path)
    return chosen


def stdlib_documents(*, held_out: bool) -> Iterator[str]:
    for path in stdlib_files(held_out=held_out):
        try:
            yield path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def generated_documents(seed: int, count: int) -> Iterator[tuple[str, str]]:
    """``count`` pairs of kind (``module`` or ``chat``) and text, closed by their end token."""
    for number in range(count):
        rng = Random(f"{seed}/{number}")
        if rng.random() < 0.4:
            yield "module", module(rng) + END_OF_TEXT
        else:
            yield "chat", render_chat(chat_messages(rng)) + END_OF_TEXT
