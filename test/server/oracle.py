"""What plain decoding answers, asked once for each request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from common.server import Server

from server.reference import ReferenceTarget

LENGTH = 128


class Oracle:
    """The plain server's answers, and a comparison with them."""

    def __init__(self, plain: Server, reference: ReferenceTarget) -> None:
        self.plain = plain
        self.reference = reference
        self._answers: dict[str, Any] = {}
        self.excused = 0

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The plain server's answer to any request."""
        key = path + json.dumps(body, sort_keys=True)
        if key not in self._answers:
            answer = self.plain.post(path, body)
            answer.raise_for_status()
            self._answers[key] = answer.json()
        return self._answers[key]

    def generate(self, text: str, **sampling: Any) -> dict[str, Any]:
        """Greedy unless ``sampling`` says otherwise, as ``Server.generate``."""
        params = {"temperature": 0, "max_new_tokens": LENGTH, **sampling}
        return self.post("/generate", {"text": text, "sampling_params": params})

    def tokens(self, text: str, count: int = LENGTH) -> list[int]:
        """The first tokens of a greedy answer that nothing stops."""
        answer = self.generate(text, max_new_tokens=max(count, LENGTH), ignore_eos=True)
        return answer["output_ids"][:count]

    def check_tokens(self, text: str, got: Sequence[int], expected: Sequence[int]) -> None:
        """Equal, or different from where two tokens are too close to call.

        Excuses are counted, and more than a few fail the session.
        """
        if list(got) == list(expected):
            return
        pairs = zip(got, expected, strict=False)
        first = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
        assert first is not None, f"{len(got)} tokens instead of {len(expected)}"
        context = [*self.reference.encode(text), *expected[:first]]
        assert self.reference.is_near_tie(context, got[first], expected[first]), (
            f"token {first} is {got[first]} instead of {expected[first]}"
        )
        self.excused += 1
