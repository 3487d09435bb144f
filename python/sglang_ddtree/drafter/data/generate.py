"""``drafter generate``: prompts answered by the served target, kept as exact token ids.

A drafter learns to foresee its own target, so it is trained on the target's answers and not on
those that came with the prompts.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_ddtree.drafter.data.openai_client import Answer, Client, Refused
from sglang_ddtree.drafter.data.prompts import Prompt
from sglang_ddtree.drafter.errors import DrafterError
from sglang_ddtree.drafter.files import append_line, whole_lines
from sglang_ddtree.drafter.progress import progress


@dataclass(frozen=True)
class Order:
    """One answer that is wanted: a prompt at a temperature."""

    prompt: Prompt
    temperature: float
    seed: int

    @property
    def key(self) -> str:
        """Names the answer; line and temperature, so that a resumed run knows it."""
        return f"{self.prompt.line}/{self.temperature:g}"


@dataclass
class Outcome:
    """Counts of one run."""

    answers: int = 0
    tokens: int = 0
    refused: int = 0
    first_refusal: str = ""


def orders_of(prompts: Sequence[Prompt], temperatures: Sequence[float], seed: int) -> list[Order]:
    """Every prompt at every temperature; each has a seed of its own, a function of ``seed``.

    One temperature after another: where greedy and sampled requests share a batch, SGLang sorts the
    probabilities of all of them.
    """
    return [
        Order(prompt, temperature, zlib.crc32(f"{seed}/{prompt.line}/{temperature:g}".encode()))
        for temperature in temperatures
        for prompt in prompts
    ]


def read_answers(path: Path) -> list[dict[str, Any]]:
    """Answers of a file, in the order of the prompts, refused ones left out."""
    found = [record for record in whole_lines(path) if "output_ids" in record]
    return sorted(found, key=lambda record: (record["line"], record["temperature"]))


def generate(
    orders: Sequence[Order],
    client: Client,
    path: Path,
    *,
    concurrency: int,
    max_tokens: int,
) -> Outcome:
    """Answer what ``path`` does not hold yet, appending each answer as soon as it is there.

    Raises:
        DrafterError: the server went away; everything answered by then is in ``path``.
    """
    done = {record["key"] for record in whole_lines(path)}
    missing = [order for order in orders if order.key not in done]
    outcome = Outcome()
    if not missing:
        return outcome
    model = client.model()

    def ask(order: Order) -> Answer:
        return client.answer(
            model,
            order.prompt,
            temperature=order.temperature,
            max_tokens=max_tokens,
            seed=order.seed,
        )

    bar = progress(len(orders), len(orders) - len(missing), "answers", "answer")
    failure: DrafterError | None = None
    with bar, ThreadPoolExecutor(concurrency) as threads:
        for order, future in _in_flight(threads, ask, missing, 2 * concurrency):
            try:
                _keep(path, order, future.result(), outcome)
            except Refused as refusal:
                append_line(
                    path, {"key": order.key, "line": order.prompt.line, "refused": str(refusal)}
                )
                outcome.refused += 1
                outcome.first_refusal = outcome.first_refusal or str(refusal)
            except DrafterError as error:
                # The others in flight may still be answered; nothing new is asked.
                failure = error
                missing.clear()
            bar.update()
    if failure is not None:
        raise DrafterError(
            f"{failure}\n{len(whole_lines(path))} of {len(orders)} answers are kept in {path}: "
            "start the server and run the same command again to go on"
        )
    return outcome


def _keep(path: Path, order: Order, answer: Answer, outcome: Outcome) -> None:
    record = {
        "key": order.key,
        "line": order.prompt.line,
        "temperature": order.temperature,
        "prompt_ids": answer.prompt_ids,
        "output_ids": answer.output_ids,
        "finish_reason": answer.finish_reason,
    }
    append_line(path, record)
    outcome.answers += 1
    outcome.tokens += len(answer.output_ids)


def _in_flight(
    threads: ThreadPoolExecutor, ask: Any, orders: list[Order], limit: int
) -> Iterator[tuple[Order, Future[Answer]]]:
    """Finished requests, at most ``limit`` ahead; clear ``orders`` to ask no more."""
    running: dict[Future[Answer], Order] = {}
    position = 0
    while True:
        while len(running) < limit and position < len(orders):
            running[threads.submit(ask, orders[position])] = orders[position]
            position += 1
        if not running:
            return
        finished, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in finished:
            yield running.pop(future), future
