"""Sends the calls of a mix to a server, in rounds, and judges what comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from common.equality import Verdict

from soaking import census
from soaking.answer import Answer
from soaking.census import Census
from soaking.client import Client
from soaking.mix import Call, Mix
from soaking.oracle import COMPARED, Oracle
from soaking.state import State

# Of resident memory, from the first round of a server to its last.
MAX_GROWTH = 0.15


@dataclass
class Soak:
    """A soak of one server, which may be another one after each round.

    Attributes:
        mix: what is sent.
        oracle: what plain decoding answers.
        state: what is known so far; changed by every round.
        clients: calls in flight.
        every: each call whose number is a multiple of this is compared, if it has one right answer.
        is_alive: whether the server is.
    """

    mix: Mix
    oracle: Oracle
    state: State
    clients: int
    every: int
    is_alive: Callable[[], bool]

    def round(self, url: str, plain_url: str, pid: int | None, count: int) -> None:
        """``count`` more calls, then a census of the idle server."""
        started = time.monotonic()
        numbers = range(self.state.done, self.state.done + count)
        asyncio.run(self._round(url, plain_url, numbers))
        self.state.done += count
        if self.is_alive():
            try:
                found = asyncio.run(census.take(url, pid, self.state.done))
            except OSError as error:
                self.state.fault(f"after call {self.state.done}: no census: {error}")
            else:
                self.state.lives[-1].append(found.asdict())
                if found.requests or found.slots:
                    self.state.fault(f"after call {self.state.done}: idle, but {found}")
        self.state.seconds += time.monotonic() - started

    def check_life(self) -> None:
        """Note what the server holds at its end and did not hold after its first round."""
        if len(self.state.lives[-1]) < 2:
            return
        first, last = (Census(**self.state.lives[-1][i]) for i in (0, -1))
        for words in last.held_too_much(first):
            self.state.fault(f"calls {first.at} to {last.at}: {words}")
        if last.rss_mb > first.rss_mb * (1 + MAX_GROWTH):
            self.state.fault(f"memory grew from {first.rss_mb} to {last.rss_mb} MB")

    async def _round(self, url: str, plain_url: str, numbers: Iterable[int]) -> None:
        left = iter(numbers)
        async with Client(url, self.clients + 8) as client, Client(plain_url, 8) as plain:
            self.oracle.plain = plain

            async def work() -> None:
                for number in left:
                    await self._one(client, self.mix.call(number))

            await asyncio.gather(*(work() for _ in range(self.clients)))

    async def _one(self, client: Client, call: Call) -> None:
        aborts = client.aborts
        answer = await client.perform(call)
        if answer.status == 0 and not self.is_alive():
            self.state.counts["lost with the server"] += 1
            return
        excused = client.aborts != aborts  # all that was in flight has been aborted
        self._count(call, answer)
        words = self._wrong(call, answer, excused)
        if words:
            self.state.fault(f"call {call.number}, {call.kind}: {words}")
        elif self._is_compared(call) and not (answer.was_aborted or answer.error):
            await self._compare(call, answer)

    def _is_compared(self, call: Call) -> bool:
        return call.number % self.every == 0 and call.kind in COMPARED and call.is_greedy

    def _count(self, call: Call, answer: Answer) -> None:
        state, counts = self.state, self.state.counts
        state.kinds[call.kind] += 1
        state.reasons.update(answer.reasons)
        counts["tokens"] += answer.tokens
        counts["retractions"] += answer.retractions
        counts["left"] += answer.left
        counts["refused"] += 400 <= answer.status < 500
        if answer.steps:
            state.accept(call.number, answer.tokens - len(answer.outputs), answer.steps)

    async def _compare(self, call: Call, answer: Answer) -> None:
        verdict, words = await self.oracle.compare(call, answer)
        self.state.counts["compared"] += 1
        self.state.counts[verdict.value] += 1
        if verdict is Verdict.DIFFERENT:
            self.state.fault(f"call {call.number}, {call.kind}: {words}")

    def _wrong(self, call: Call, answer: Answer, excused: bool) -> str:
        """What is wrong with an answer, whatever plain decoding says; nothing if empty."""
        if call.bad is not None:
            refused = 400 <= answer.status < 500
            name = f"{call.path}, {call.bad.name}"
            return "" if refused else f"{name}: HTTP {answer.status} {answer.error}"
        if call.kind == "flush":
            return "" if answer.status in (200, 400) else f"HTTP {answer.status} {answer.error}"
        if answer.error:
            return "" if excused else f"HTTP {answer.status} {answer.error}"
        if answer.was_aborted and not (excused or call.kind == "abort"):
            return "was aborted"
        return _too_long(call, answer.outputs)


def _too_long(call: Call, outputs: list[dict[str, Any]]) -> str:
    """Whether an output has more tokens than were asked for."""
    bodies = call.turns or [call.body] * len(outputs)
    for body, output in zip(bodies, outputs, strict=False):
        limit = body["sampling_params"]["max_new_tokens"]
        if len(output["output_ids"]) > limit:
            return f"{len(output['output_ids'])} tokens of {limit}"
    return ""
