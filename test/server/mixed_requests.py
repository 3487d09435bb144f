"""Random requests: greedy and sampled, streamed and not, some left in mid-stream."""

from __future__ import annotations

import random
from typing import Any

from common.server import Server

from server.client import events
from server.oracle import Oracle


def one_request(server: Server, oracle: Oracle, text: str, chance: random.Random) -> int:
    """Send one random request, check what can be checked, return how often it was retracted."""
    greedy = chance.random() < 0.5
    length = chance.randint(1, 120)
    params: dict[str, Any] = {"temperature": 0, "max_new_tokens": length, "ignore_eos": True}
    if not greedy:
        params |= {"temperature": chance.uniform(0.3, 1.3), "top_p": chance.choice([1.0, 0.9])}
        params |= {"top_k": chance.choice([-1, 20]), "sampling_seed": chance.randint(0, 9999)}
    if chance.random() < 0.15:
        params["ignore_eos"] = False
    body = {"text": text, "sampling_params": params, "stream": chance.random() < 0.5}
    leave_after = chance.randint(1, 6) if body["stream"] and chance.random() < 0.4 else None
    answer: dict[str, Any] = {}
    with server.post("/generate", body, stream=True) as response:
        assert response.status_code == 200
        if not body["stream"]:
            answer = response.json()
        else:
            for count, event in enumerate(events(response)):
                answer = event
                if count == leave_after:
                    return 0  # closes the connection
    if greedy and params["ignore_eos"]:
        oracle.check_tokens(text, answer["output_ids"], oracle.tokens(text, length))
    return answer["meta_info"]["num_retractions"]
