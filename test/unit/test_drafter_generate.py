"""Answers of a server that is slow, flaky, refuses or dies: what is kept, and what a rerun asks."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sglang_ddtree import cli
from sglang_ddtree.drafter.data import openai_client
from sglang_ddtree.drafter.data.generate import generate, orders_of, read_answers
from sglang_ddtree.drafter.data.openai_client import Client
from sglang_ddtree.drafter.data.prompts import read_prompts
from sglang_ddtree.drafter.errors import DrafterError


class FakeTarget:
    """An OpenAI API that answers n with the ids n, n + 1; ``behave`` may give another status."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.behave: Callable[[int, int], int] = lambda number, tries: 200
        self.running = self.most = 0
        self.lock = threading.Lock()
        self.tries: Counter[int] = Counter()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply(200, {"data": [{"id": "tiny"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = outer.handle(self.path, body)
                self.reply(status, answer)

            def reply(self, status: int, body: dict[str, Any]) -> None:
                payload = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def handle(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        chat = path.endswith("/chat/completions")
        number = int(body["messages"][-1]["content"] if chat else body["prompt"])
        with self.lock:
            self.asked.append(body)
            self.tries[number] += 1
            self.running += 1
            self.most = max(self.most, self.running)
            status = self.behave(number, self.tries[number])
        time.sleep(0.01)  # the answer takes a while, so that requests overlap
        with self.lock:
            self.running -= 1
        ids = "response_token_ids" if chat else "token_ids"
        choice = {"finish_reason": "stop", "prompt_token_ids": [7], ids: [number, number + 1]}
        return status, {"choices": [choice]}


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTarget]:
    monkeypatch.setattr(openai_client, "FIRST_PAUSE_S", 0.001)
    fake = FakeTarget()
    yield fake
    fake.http.shutdown()
    fake.http.server_close()


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"messages": [{"role": "user", "content": str(n)}]} if n % 2 else {"prompt": str(n)}
        for n in range(1, 13)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def answer_all(target: FakeTarget, prompts: Path, path: Path, temperatures=(0.0,)) -> Any:
    orders = orders_of(read_prompts(prompts), temperatures, seed=5)
    return generate(orders, Client(target.url, retries=2), path, concurrency=3, max_tokens=9)


def test_every_prompt_at_every_temperature(target: FakeTarget, prompts: Path, tmp_path: Path):
    outcome = answer_all(target, prompts, tmp_path / "answers.jsonl", (0.0, 0.7))
    answers = read_answers(tmp_path / "answers.jsonl")
    assert outcome.answers == len(answers) == 24
    assert outcome.tokens == 48
    assert [a["line"] for a in answers] == sorted([*range(1, 13)] * 2)
    assert all(a["output_ids"] == [a["line"], a["line"] + 1] for a in answers)
    assert {a["temperature"] for a in answers} == {0.0, 0.7}
    assert 2 <= target.most <= 3, "the concurrency limit"
    assert {body["model"] for body in target.asked} == {"tiny"}
    assert all(body["return_token_ids"] and body["max_tokens"] == 9 for body in target.asked)
    assert len({body["seed"] for body in target.asked}) == 24


def test_failures_are_retried(target: FakeTarget, prompts: Path, tmp_path: Path) -> None:
    target.behave = lambda number, tries: 503 if tries < 3 else 200
    assert answer_all(target, prompts, tmp_path / "a.jsonl").answers == 12
    assert set(target.tries.values()) == {3}


def test_a_refused_prompt_does_not_stop_the_others(
    target: FakeTarget, prompts: Path, tmp_path: Path
) -> None:
    target.behave = lambda number, tries: 400 if number == 4 else 200
    outcome = answer_all(target, prompts, tmp_path / "a.jsonl")
    assert (outcome.answers, outcome.refused) == (11, 1)
    assert "HTTP 400" in outcome.first_refusal
    assert target.tries[4] == 1, "a refusal is final"
    assert answer_all(target, prompts, tmp_path / "a.jsonl").answers == 0
    assert target.tries[4] == 1


def test_a_server_that_dies_costs_nothing(
    target: FakeTarget, prompts: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    target.behave = lambda number, tries: 200 if number < 6 else 500
    with pytest.raises(DrafterError, match="run the same command again") as caught:
        answer_all(target, prompts, path)
    kept = [answer["line"] for answer in read_answers(path)]
    assert kept == [1, 2, 3, 4, 5]
    assert "5 of 12 answers are kept" in str(caught.value)
    # A kill in the middle of a line.
    with path.open("a") as file:
        file.write('{"key": "6/0", "output_')
    target.behave = lambda number, tries: 200
    before = len(target.asked)
    assert answer_all(target, prompts, path).answers == 7
    assert len(target.asked) - before == 7
    answers = read_answers(path)
    assert [a["output_ids"] for a in answers] == [[n, n + 1] for n in range(1, 13)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"prompt": "a"', "Expecting"),
        ("[1]", "not a JSON object"),
        ('{"text": "a"}', '"messages"'),
        ('{"messages": [{"role": "user"}]}', '"content"'),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "no turn to answer"),
        ('{"prompt": ""}', "not empty"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "fine"}\n\n' + line + "\n")
    with pytest.raises(DrafterError, match=reason) as caught:
        read_prompts(path)
    assert "line 3" in str(caught.value)


def test_given_answers_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    turns = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    messages = [{"role": role, "content": text} for role, text in turns]
    path.write_text(json.dumps({"messages": messages}))
    (prompt,) = read_prompts(path)
    assert prompt.messages == tuple(messages[:3])


def test_the_command(
    target: FakeTarget, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["drafter", "generate", "--work", str(tmp_path / "run"), "--server", target.url]
    command += ["--prompts", str(prompts), "--retries", "0"]
    assert cli.main([*command, "--limit", "4"]) == 0
    assert cli.main([*command, "--temperatures", "0,0.7"]) == 0
    assert len(read_answers(tmp_path / "run" / "answers.jsonl")) == 24
    assert cli.main([*command, "--seed", "3"]) == 1
    assert "seed 0 (now 3)" in capsys.readouterr().err
    target.http.shutdown()
    target.http.server_close()
    assert cli.main([*command, "--temperatures", "1"]) == 1
    assert "no answer from" in capsys.readouterr().err


def test_a_killed_command_loses_no_answer(
    target: FakeTarget, prompts: Path, tmp_path: Path
) -> None:
    work = tmp_path / "run"
    command = [sys.executable, "-m", "sglang_ddtree.cli", "drafter", "generate"]
    command += ["--work", str(work), "--server", target.url, "--prompts", str(prompts)]
    command += ["--concurrency", "1"]
    halt = threading.Event()

    def behave(number: int, tries: int) -> int:
        if number == 5 and tries == 1:
            halt.wait(60)  # until the killed command is gone
        return 200

    target.behave = behave
    target.lock = threading.RLock()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while target.tries[5] == 0:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)  # between looks at the condition
    process.kill()
    process.wait()
    halt.set()
    kept = [answer["line"] for answer in read_answers(work / "answers.jsonl")]
    assert kept == [1, 2, 3, 4]
    assert subprocess.run(command, timeout=120).returncode == 0
    answers = read_answers(work / "answers.jsonl")
    assert [a["output_ids"] for a in answers] == [[n, n + 1] for n in range(1, 13)]
    assert [target.tries[n] for n in range(1, 6)] == [1, 1, 1, 1, 2]
