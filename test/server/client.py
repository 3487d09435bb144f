"""Requests as a client sends them, and what it waits for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import requests
from common.server import Server


def events(response: requests.Response) -> Iterator[dict[str, Any]]:
    """The JSON events of a stream, up to ``[DONE]``."""
    for line in response.iter_lines():
        if line.startswith(b"data: ") and line != b"data: [DONE]":
            yield json.loads(line.removeprefix(b"data: "))


def stream(server: Server, text: str, **sampling: Any) -> list[dict[str, Any]]:
    """All events of a streamed ``/generate``; each holds the answer so far."""
    params = {"temperature": 0, "max_new_tokens": 128, **sampling}
    body = {"text": text, "stream": True, "sampling_params": params}
    with server.post("/generate", body, stream=True) as response:
        response.raise_for_status()
        return list(events(response))


def steps(server: Server, text: str, **sampling: Any) -> list[list[int]]:
    """The tokens that each decode step added to a greedy answer; the first is the prefill's."""
    ends = [event["meta_info"]["completion_tokens"] for event in stream(server, text, **sampling)]
    ids = stream(server, text, **sampling)[-1]["output_ids"]
    return [ids[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start]


def load(server: Server) -> dict[str, Any]:
    """SGLang's view of its queues and its KV pool."""
    answer = requests.get(server.url + "/v1/loads", timeout=60)
    answer.raise_for_status()
    (only,) = answer.json()["loads"]
    return only


def metric(server: Server, name: str) -> float:
    """A Prometheus figure of a server with ``--enable-metrics``; 0 before its first event."""
    lines = requests.get(server.url + "/metrics/", timeout=60).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))


def is_idle(server: Server) -> bool:
    """No request runs or waits, and none holds a KV slot."""
    now = load(server)
    return (
        not any(now[key] for key in ("num_running_reqs", "num_waiting_reqs", "num_used_tokens"))
        and server.is_alive()
    )
