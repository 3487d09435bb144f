"""Where an answer is cut and what of it is sent, for any tokens in steps of any size."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from common.server import tree_flags
from transformers import AutoTokenizer

from server.configurations import PAIR

pytestmark = pytest.mark.no_server

EOS = 2
TARGET = ("--model-path", str(PAIR.target))
SERVERS = {"plain": [*TARGET], "tree": [*TARGET, *tree_flags(PAIR, 15)]}
# A sentence of the text, and what its steps must have in them.
NAMED = {
    "first string of the text": ("one A and two B, and so on", [" B", " A"], []),
    "string after the end": ("one A<|end|> and two B", [" B"], []),
    "character in pieces": ("one two 😀 and three", [" 😀"], []),
    "expression found literally": ("one two and three", [], ["two and"]),
}


def ask(questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    asked = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("answer_pipeline.py"))],
        input=json.dumps({"servers": SERVERS, "questions": questions}),
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    return json.loads(asked.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(PAIR.target)


def encode(tokenizer: Any, text: str) -> list[int]:
    """``<|end|>`` is the token that ends an answer."""
    parts = [tokenizer.encode(part, add_special_tokens=False) for part in text.split("<|end|>")]
    tokens = parts[0]
    for part in parts[1:]:
        tokens = [*tokens, EOS, *part]
    return tokens


def questions_about(
    tokens: list[int], steps: list[int], stops: list[str], expressions: list[str], limit: int
) -> list[dict[str, Any]]:
    """Plain decoding's answer, then the tree's without and with a stream."""
    sampling = {"max_new_tokens": limit, "stop": stops, "stop_regex": expressions}
    common = {"tokens": tokens, "sampling": sampling}
    ones = [1] * len(tokens)
    return [
        {**common, "server": "plain", "steps": ones, "stream": True},
        {**common, "server": "tree", "steps": steps, "stream": False},
        {**common, "server": "tree", "steps": steps, "stream": True},
    ]


def text_of(tokenizer: Any, answer: dict[str, Any]) -> str:
    """An answer's text, from its tokens and its reason to end."""
    matched = answer["reason"].get("matched")
    tokens = answer["tokens"][:-1] if isinstance(matched, int) else answer["tokens"]
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    return text.split(matched)[0] if isinstance(matched, str) else text


def check(tokenizer: Any, questions: list[dict[str, Any]], answers: list[dict[str, Any]]) -> None:
    for start in range(0, len(questions), 3):
        plain, *trees = answers[start : start + 3]
        text = text_of(tokenizer, plain)
        for question, answer in zip(questions[start + 1 : start + 3], trees, strict=True):
            assert answer["tokens"] == plain["tokens"], question
            assert answer["reason"] == plain["reason"], question
            assert "".join(answer["deltas"]) == text, question


def test_named_cases(tokenizer: Any) -> None:
    questions = []
    for text, stops, expressions in NAMED.values():
        tokens = encode(tokenizer, text)
        size = len(tokens)
        every_cut = [[cut, size - cut] for cut in range(1, size)]
        for steps in (*every_cut, [1] * size, [2] * (size // 2) + [1] * (size % 2)):
            questions += questions_about(tokens, steps, stops, expressions, size)
    check(tokenizer, questions, ask(questions))


def test_beginning_of_a_stop_at_the_fiftieth_token(tokenizer: Any) -> None:
    """SGLang reads the text of an answer without a stream every 50 tokens."""
    tokens = encode(tokenizer, "x" * 49 + "A" + "B" + "y" * 20)
    assert len(tokens) == 71 or len(set(tokens)) > 3
    place = tokens.index(tokenizer.encode("A", add_special_tokens=False)[0])
    tokens = [tokens[0]] * (49 - place) + tokens if place < 49 else tokens[place - 49 :]
    steps = [25, 25, *[1] * (len(tokens) - 50)]
    questions = questions_about(tokens, steps, ["AB"], [], len(tokens))
    check(tokenizer, questions, ask(questions))


def test_random_answers(tokenizer: Any) -> None:
    """Texts of held-out prompts with emoji and ends in them; stops are pieces of the text."""
    choose = random.Random(15)
    questions = []
    for record in PAIR.prompts(60):
        text = record["prompt"][: choose.randint(40, 300)]
        for _ in range(choose.randint(0, 3)):
            place = choose.randrange(len(text))
            text = text[:place] + choose.choice(["😀", "é", "中文", "<|end|>"]) + text[place:]
        tokens = encode(tokenizer, text)
        plain_text = text.replace("<|end|>", "")
        pieces = []
        for _ in range(choose.randint(1, 3)):
            place = choose.randrange(len(plain_text))
            pieces.append(plain_text[place : place + choose.randint(1, 8)])
        steps: list[int] = []
        while sum(steps) < len(tokens):
            steps.append(min(choose.randint(1, 16), len(tokens) - sum(steps)))
        limit = choose.choice([len(tokens), choose.randint(1, len(tokens))])
        questions += questions_about(tokens, steps, pieces, [], limit)
    check(tokenizer, questions, ask(questions))
