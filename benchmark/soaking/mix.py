"""A seeded mix of what clients do to a server.

Every call follows from the seed and its number alone, so a soak can be resumed at any number and a
fault can be looked at again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from common.pairs import Pair

from soaking.bad_requests import BadRequest, bad_requests

# How often each kind comes, relative to the others.
WEIGHTS = {
    "generate": 60.0,
    "long": 4.0,  # answers of up to 120 tokens: several of them overfill a small pool
    "several": 3.0,  # n > 1
    "batch": 3.0,  # several prompts in one request
    "completion": 6.0,
    "chat": 6.0,
    "ollama": 2.0,
    "leave": 6.0,  # a stream whose reader goes away
    "abort": 3.0,  # a request that another one aborts
    "session": 2.0,
    "pause": 1.0,
    "flush": 1.0,
    "bad": 4.0,
    "weights": 0.1,  # the same weights again
}
MAX_PROMPT = 300


@dataclass(frozen=True)
class Call:
    """One thing that a client does.

    Attributes:
        number: the call's place in the mix.
        kind: a key of :data:`WEIGHTS`.
        path: endpoint, if the kind is one request.
        body: JSON body of the request; of ``pause``, its mode.
        text: the prompt, as ``/generate`` would be given it.
        leave_after: events of the stream after which the client closes the connection.
        turns: bodies of a session's requests, in order.
        bad: what is wrong with it, and what must be answered.
    """

    number: int
    kind: str
    path: str = "/generate"
    body: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    leave_after: int | None = None
    turns: tuple[dict[str, Any], ...] = ()
    bad: BadRequest | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether plain decoding must answer the same."""
        fields = self.turns[0] if self.turns else self.body
        nested = {**fields.get("sampling_params", {}), **fields.get("options", {})}
        return {**fields, **nested}.get("temperature") == 0

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))


class Mix:
    """The calls of one seed.

    Args:
        pair: whose held-out prompts are sent, whole or cut.
        seed: of every draw.
        without: kinds that are left out.
        fatal: also bad requests that end a plain SGLang server.
    """

    def __init__(
        self, pair: Pair, seed: int, without: Collection[str] = (), fatal: bool = True
    ) -> None:
        from transformers import AutoTokenizer

        self._target = pair.target
        self._seed = seed
        self._weights = {kind: w for kind, w in WEIGHTS.items() if kind not in without}
        tokenizer = AutoTokenizer.from_pretrained(pair.target)
        records = [r for r in pair.prompts() if len(tokenizer.encode(r["prompt"])) <= MAX_PROMPT]
        self._texts = [record["prompt"] for record in records]
        self._ids = {text: tokenizer.encode(text) for text in self._texts}
        self._chats = [record for record in records if record["kind"] == "chat"]
        self._bad = [bad for bad in bad_requests(len(tokenizer)) if fatal or not bad.is_fatal]

    def call(self, number: int) -> Call:
        """The call of that number."""
        chance = random.Random(f"{self._seed}/{number}")
        (kind,) = chance.choices(list(self._weights), list(self._weights.values()))
        makers: dict[str, Callable[[int, random.Random], Call]] = {
            "generate": self._generate,
            "long": self._long,
            "several": self._several,
            "batch": self._batch,
            "completion": self._completion,
            "chat": self._chat,
            "ollama": self._ollama,
            "leave": self._leave,
            "abort": self._abort,
            "session": self._session,
            "pause": self._pause,
            "flush": self._flush,
            "bad": self._bad_request,
            "weights": self._same_weights,
        }
        return makers[kind](number, chance)

    def _text(self, chance: random.Random) -> str:
        """A prompt, often one of few: those share their prefixes in the cache."""
        few = self._texts[:6] if chance.random() < 0.5 else self._texts
        text = chance.choice(few)
        if chance.random() < 0.3:
            text = text[: chance.randint(1, len(text))]
        return text

    def _sampling(self, chance: random.Random, longest: int = 32) -> dict[str, Any]:
        """Sampling parameters: greedy half of the time, with and without what stops an answer."""
        params: dict[str, Any] = {"max_new_tokens": chance.randint(1, longest), "temperature": 0}
        if chance.random() < 0.5:
            params["temperature"] = round(chance.uniform(0.3, 1.3), 2)
            params["top_p"] = chance.choice([1.0, 0.9, 0.5])
            params["top_k"] = chance.choice([-1, 1, 20])
            params["sampling_seed"] = chance.randint(0, 9999)
        params["ignore_eos"] = chance.random() < 0.7
        if chance.random() < 0.2:
            params["stop"] = chance.choice(["\n", [" the", ")"], ["e", "no such text"], "self."])
            params["no_stop_trim"] = chance.random() < 0.5
        elif chance.random() < 0.1:
            params["stop_token_ids"] = [chance.randint(3, 400) for _ in range(8)]
        return params

    def _generate(self, number: int, chance: random.Random, longest: int = 32) -> Call:
        text = self._text(chance)
        prompt: dict[str, Any] = {"text": text}
        if chance.random() < 0.2 and text in self._ids:
            ids = self._ids[text]
            prompt = {"input_ids": ids[: chance.randint(1, len(ids))]}
        body = {**prompt, "sampling_params": self._sampling(chance, longest)}
        body["stream"] = chance.random() < 0.5
        kind = "long" if longest > 32 else "generate"
        return Call(number, kind, body=body, text=text)

    def _long(self, number: int, chance: random.Random) -> Call:
        return self._generate(number, chance, longest=120)

    def _several(self, number: int, chance: random.Random) -> Call:
        params = {**self._sampling(chance), "n": chance.randint(2, 4)}
        text = self._text(chance)
        return Call(number, "several", body={"text": text, "sampling_params": params}, text=text)

    def _batch(self, number: int, chance: random.Random) -> Call:
        texts = [self._text(chance) for _ in range(chance.randint(2, 5))]
        body = {"text": texts, "sampling_params": self._sampling(chance, 16)}
        return Call(number, "batch", body=body)

    def _openai(self, chance: random.Random) -> dict[str, Any]:
        """Sampling parameters in OpenAI's words."""
        params = self._sampling(chance)
        body = {"model": "soak", "max_tokens": params["max_new_tokens"]}
        body |= {key: params[key] for key in ("temperature", "stop", "top_p") if key in params}
        if chance.random() < 0.5:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    def _completion(self, number: int, chance: random.Random) -> Call:
        text = self._text(chance)
        body = {**self._openai(chance), "prompt": text}
        return Call(number, "completion", "/v1/completions", body, text)

    def _chat(self, number: int, chance: random.Random) -> Call:
        record = chance.choice(self._chats)
        body = {**self._openai(chance), "messages": record["messages"]}
        return Call(number, "chat", "/v1/chat/completions", body, record["prompt"])

    def _ollama(self, number: int, chance: random.Random) -> Call:
        record = chance.choice(self._chats)
        options = {"temperature": 0, "num_predict": chance.randint(1, 32)}
        body = {"model": "soak", "messages": record["messages"], "options": options}
        body["stream"] = chance.random() < 0.7
        return Call(number, "ollama", "/api/chat", body, record["prompt"])

    def _leave(self, number: int, chance: random.Random) -> Call:
        body = {"text": self._text(chance), "sampling_params": self._sampling(chance, 120)}
        leave = chance.randint(0, 6)
        return Call(number, "leave", body={**body, "stream": True}, leave_after=leave)

    def _abort(self, number: int, chance: random.Random) -> Call:
        body = {"text": self._text(chance), "sampling_params": self._sampling(chance, 120)}
        return Call(
            number, "abort", body={**body, "stream": True}, leave_after=chance.randint(0, 4)
        )

    def _session(self, number: int, chance: random.Random) -> Call:
        params = {"temperature": 0, "ignore_eos": True}
        turns = tuple(
            {
                "text": self._text(chance)[: chance.randint(1, 120)],
                "sampling_params": {**params, "max_new_tokens": chance.randint(1, 24)},
            }
            for _ in range(chance.randint(2, 4))
        )
        return Call(number, "session", turns=turns)

    def _pause(self, number: int, chance: random.Random) -> Call:
        mode = chance.choice(["in_place", "retract", "retract", "abort"])
        return Call(number, "pause", "/pause_generation", {"mode": mode})

    def _flush(self, number: int, chance: random.Random) -> Call:
        return Call(number, "flush", "/flush_cache")

    def _bad_request(self, number: int, chance: random.Random) -> Call:
        bad = chance.choice(self._bad)
        return Call(number, "bad", bad.path, bad.body, bad=bad)

    def _same_weights(self, number: int, chance: random.Random) -> Call:
        body = {"model_path": str(self._target), "flush_cache": chance.random() < 0.5}
        return Call(number, "weights", "/update_weights_from_disk", body)
