"""The OpenAI API of a served target, with the exact token ids of what it read and wrote."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from sglang_ddtree.drafter.data.prompts import Prompt
from sglang_ddtree.drafter.errors import DrafterError

FIRST_PAUSE_S = 1.0
TIMEOUT_S = 3600.0


class Refused(Exception):
    """The server answered that it won't take this request; the next one may be fine."""


class Unreachable(DrafterError):
    """No answer, after all retries."""


@dataclass(frozen=True)
class Answer:
    """One answer of the target, in tokens.

    Attributes:
        prompt_ids: as the server tokenised the prompt, chat template included.
        output_ids: what it wrote, the end token included where it stopped at one.
    """

    prompt_ids: list[int]
    output_ids: list[int]
    finish_reason: str


class Client:
    """Requests to ``/v1/chat/completions`` and ``/v1/completions``; safe to use from threads.

    ``return_token_ids`` is SGLang's extension of both
    (srt/entrypoints/openai/protocol.py:394,963@0.5.23): ids are the server's own, so nothing is
    tokenised again, which would not always give the same tokens.

    Args:
        url: of the server, with or without ``/v1``.
        retries: after a failure to connect or a server error.
    """

    def __init__(self, url: str, retries: int = 5, api_key: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1") + "/v1"
        self.retries = retries
        self.gone = threading.Event()  # set once a request has run out of retries
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def model(self) -> str:
        """Name of the model that is served.

        Raises:
            Unreachable: nothing answers at the address.
        """
        return str(self._request("GET", "/models", None)["data"][0]["id"])

    def answer(
        self, model: str, prompt: Prompt, *, temperature: float, max_tokens: int, seed: int
    ) -> Answer:
        """Answer one prompt.

        Raises:
            Refused: the server refuses this prompt (too long, for instance).
            Unreachable: no answer, after all retries.
        """
        body = {
            "model": model,
            "temperature": temperature,
            "max_tokens": max_tokens,
            "seed": seed,
            "return_token_ids": True,
        }
        if prompt.messages is not None:
            chat = {**body, "messages": list(prompt.messages)}
            choice = self._request("POST", "/chat/completions", chat)["choices"][0]
            output = choice.get("response_token_ids")
        else:
            text = {**body, "prompt": prompt.text}
            choice = self._request("POST", "/completions", text)["choices"][0]
            output = choice.get("token_ids")
        if not choice.get("prompt_token_ids") or output is None:
            raise DrafterError(
                f"{self.url} answers without token ids: serve the target with SGLang 0.5.23, whose "
                "API knows return_token_ids"
            )
        return Answer(choice["prompt_token_ids"], output, choice["finish_reason"])

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        import requests

        reason = ""
        for attempt in range(self.retries + 1):
            if attempt and self.gone.wait(FIRST_PAUSE_S * 2 ** (attempt - 1)):
                break
            try:
                response = requests.request(
                    method, self.url + path, json=body, headers=self.headers, timeout=TIMEOUT_S
                )
            except requests.RequestException as error:
                reason = str(error)
                continue
            if response.status_code == 200:
                return response.json()
            reason = f"HTTP {response.status_code}: {response.text[:300]}"
            if response.status_code < 500 and response.status_code not in (408, 429):
                raise Refused(reason)
        self.gone.set()
        raise Unreachable(f"no answer from {self.url}{path} in {self.retries + 1} tries: {reason}")
