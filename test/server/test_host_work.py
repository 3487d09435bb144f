"""What the host does in a decode step: as little for many nodes and requests as for few."""

from __future__ import annotations

from typing import Any

import pytest

from server.configurations import Servers
from server.step_probe import Record

LENGTH = 24
# One forward of the drafter and one of the target: a step is about a hundred launches around them.
MOST_OPERATIONS = 400


def recorded(servers: Servers, name: str, requests: int, **sampling: Any) -> list[Record]:
    """Steps with exactly ``requests`` requests."""
    server, probe = servers.get(name), servers.probe(name)
    params = {"temperature": 0, "max_new_tokens": LENGTH, "ignore_eos": True, **sampling}
    texts = [f"def function_{i}(values):\n    " for i in range(requests)]
    body = {"text": texts, "sampling_params": params}
    server.post("/generate", body).raise_for_status()  # index tables are made at a first call
    with probe.armed():
        server.post("/generate", body).raise_for_status()
    records = [record for record in probe.records() if record.batch_size == requests]
    assert records, f"no step had {requests} requests"
    return records


@pytest.fixture(scope="session")
def greedy(servers: Servers) -> dict[tuple[str, int], list[Record]]:
    """Steps by configuration and batch size; filled as the tests come by their servers."""
    return {}


@pytest.mark.parametrize("name", ["square", "wide", "cramped"])
@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    ],
    ids=["greedy", "sampled", "filtered"],
)
def test_nothing_waits_for_the_device(
    servers: Servers, name: str, sampling: dict[str, float]
) -> None:
    for requests in (1, 3):
        for record in recorded(servers, name, requests, **sampling):
            assert record.waits == []


@pytest.mark.parametrize("name", ["square", "wide", "cramped"])
def test_operations_do_not_depend_on_the_batch(
    servers: Servers, greedy: dict[tuple[str, int], list[Record]], name: str
) -> None:
    for requests in (1, 3, 6):
        greedy[name, requests] = recorded(servers, name, requests)
    for requests in (3, 6):
        for record in greedy[name, requests]:
            assert record.counts == greedy[name, 3][0].counts
    # The rows of a single request are contiguous, so slices of them are not copied.
    for record in greedy[name, 1]:
        assert {**record.counts, "reshape": 0} == {**greedy[name, 3][0].counts, "reshape": 0}
    assert 20 < greedy[name, 6][0].total < MOST_OPERATIONS


@pytest.mark.parametrize("name", ["cramped"])
def test_operations_do_not_depend_on_the_budget(
    servers: Servers, greedy: dict[tuple[str, int], list[Record]], name: str
) -> None:
    """63 nodes on the one server, 31 on the other, both grown from the spine."""
    for key in (("wide", 3), (name, 3)):
        if key not in greedy:
            greedy[key] = recorded(servers, *key)
    assert greedy["wide", 3][0].counts == greedy[name, 3][0].counts
