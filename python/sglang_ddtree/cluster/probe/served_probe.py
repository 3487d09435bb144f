"""Measures decode steps of a running server, at growing batch widths."""

from __future__ import annotations

import json
import statistics
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sglang_ddtree.cluster.planning.cost import MeasuredStep

# Tokens of one answer; steps are counted, so how many it takes does not matter.
NEW_TOKENS = 64


def measure_steps(
    url: str, model: str, tp: int, budget: int, batches: Sequence[int], rounds: int = 2
) -> list[MeasuredStep]:
    """Decode steps of the server at `url`, greedy, median over all requests of all rounds.

    The time of a request is that from its first to its last event, so prefill is left out.
    Raises OSError where the server can't be reached.
    """
    found = []
    for batch in batches:
        _round(url, batch)  # warms caches and kernels up
        steps = [step for _ in range(rounds) for step in _round(url, batch)]
        context = round(statistics.mean(length for _, length in steps))
        ms = statistics.median(time_ms for time_ms, _ in steps)
        found.append(MeasuredStep(model, tp, batch, budget, context, ms))
    return found


def _round(url: str, batch: int) -> list[tuple[float, int]]:
    with ThreadPoolExecutor(batch) as clients:
        return list(clients.map(lambda i: _request(url, i), range(batch)))


def _request(url: str, number: int) -> tuple[float, int]:
    """Milliseconds a step and the mean context of one request."""
    body = {
        "text": f"{number}. Write a function that adds two numbers, with tests.\n",
        "stream": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True},
    }
    request = urllib.request.Request(
        url + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    times, first, info = [], None, {}
    with urllib.request.urlopen(request, timeout=600) as answer:
        for event in _events(answer):
            times.append(time.perf_counter())
            info = event["meta_info"]
            first = first or info
    assert first is not None
    # What came with the first event was not decoded within the time that is measured.
    steps = info.get("spec_verify_ct", 0) - first.get("spec_verify_ct", 0)
    steps = steps or info["completion_tokens"] - first["completion_tokens"]
    if steps < 1:
        raise ValueError(f"{url} answered in one piece, so its steps can't be timed")
    context = info["prompt_tokens"] + info["completion_tokens"] // 2
    return (times[-1] - times[0]) / steps * 1e3, context


def _events(answer: Any) -> Iterator[dict[str, Any]]:
    for line in answer:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield json.loads(line.removeprefix(b"data: "))
