"""What a server answered to one call."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """Everything of an answer that is looked at.

    Attributes:
        status: HTTP status of the (last) response; 0 where there was none.
        outputs: of ``/generate``: SGLang's answers, one a sampled text.
        texts: of the other endpoints: the text, joined where it was streamed.
        reasons: why each output ended.
        error: the message of a refusal, or of what failed on the way.
        left: the client went away, or had the request aborted, before the end.
    """

    status: int = 0
    outputs: list[dict[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    error: str = ""
    left: bool = False

    @property
    def tokens(self) -> int:
        return sum(output["meta_info"]["completion_tokens"] for output in self.outputs)

    @property
    def steps(self) -> int:
        """Decode steps of a server that speculates, else 0."""
        return sum(output["meta_info"].get("spec_verify_ct", 0) for output in self.outputs)

    @property
    def retractions(self) -> int:
        return sum(output["meta_info"].get("num_retractions", 0) for output in self.outputs)

    @property
    def was_aborted(self) -> bool:
        return "abort" in self.reasons

    def add_outputs(self, made: Any) -> None:
        """Take what ``/generate`` answered."""
        for output in made if isinstance(made, list) else [made]:
            self.outputs.append(output)
            reason = output["meta_info"]["finish_reason"] or {}
            self.reasons.append(reason.get("type", ""))

    def add_body(self, kind: str, body: bytes) -> None:
        """Take an answer that came as a whole."""
        made = json.loads(body)
        if kind == "completion":
            choices = made["choices"]
            self.texts += [choice["text"] for choice in choices]
            self.reasons += [choice["finish_reason"] for choice in choices]
        elif kind == "chat":
            choices = made["choices"]
            self.texts += [choice["message"]["content"] or "" for choice in choices]
            self.reasons += [choice["finish_reason"] for choice in choices]
        elif kind == "ollama":
            self.texts.append(made["message"]["content"])
        else:
            self.add_outputs(made)


@dataclass
class Stream:
    """The events of one stream, joined as a client joins them."""

    kind: str
    text: str = ""
    reason: str = ""
    events: int = 0
    last: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    def feed(self, line: bytes) -> None:
        """Take one line of the body."""
        line = line.removeprefix(b"data: ").strip()
        if not line or line == b"[DONE]":
            return
        event = json.loads(line)
        self.events += 1
        if "error" in event:
            self.error = json.dumps(event)
        elif self.kind in ("completion", "chat"):
            for choice in event["choices"]:
                part = (
                    choice["text"] if self.kind == "completion" else choice["delta"].get("content")
                )
                self.text += part or ""
                self.reason = choice["finish_reason"] or self.reason
        elif self.kind == "ollama":
            self.text += event["message"]["content"]
        else:
            earlier = self.last.get("output_ids", [])
            if event["output_ids"][: len(earlier)] != earlier:
                self.error = f"event {self.events} takes tokens back"
            self.last = event

    def finish(self, answer: Answer) -> None:
        """Add what came to ``answer``."""
        if self.error:
            answer.error = self.error
        elif self.kind in ("completion", "chat", "ollama"):
            answer.texts.append(self.text)
            answer.reasons.append(self.reason)
        elif self.last.get("meta_info"):
            answer.add_outputs(self.last)
