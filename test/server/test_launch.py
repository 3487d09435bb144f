"""``sglang-ddtree launch`` for real: ranks over gloo, replicas behind SGLang's router.

``DDTREE_SOAK_REQUESTS`` sets how many mixed requests run at once (120 by default, to keep CI
short), ``DDTREE_TEST_TP4=1`` adds four ranks, ``DDTREE_TEST_ALL_PAIRS=1`` the other bundled pairs:
both take minutes to start on two cores.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from common.pairs import Pair

from server.client import is_idle, load
from server.configurations import PAIR
from server.launching import (
    Launched,
    memory_policy,
    still_running,
    threads_by_cores,
    with_more_heads,
)
from server.mixed_requests import one_request
from server.oracle import Oracle
from server.pair_server import plain_oracle
from waiting import wait_until

REQUESTS = int(os.environ.get("DDTREE_SOAK_REQUESTS", "120"))
BUDGET = ("--budget", "31")
CORES = sorted(os.sched_getaffinity(0))


def check_greedy(service: Launched, oracle: Oracle, prompts: list[str], length: int = 64) -> None:
    answers = service.generate_all(prompts, 4, max_new_tokens=length, ignore_eos=True)
    for text, answer in zip(prompts, answers, strict=True):
        oracle.check_tokens(text, answer["output_ids"], oracle.tokens(text, length))
    # The target with a tree, not without.
    assert max(answer["meta_info"]["spec_accept_length"] for answer in answers) > 2


def check_binding(service: Launched, planned: list[int]) -> None:
    """Every thread of every rank, and its memory, are where the plan has them."""
    ranks = service.ranks()
    assert [list(threads_by_cores(rank)) for _, rank in ranks] == [[str(c)] for c in planned]
    for _, rank in ranks:
        assert memory_policy(rank).startswith("prefer:")


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[Launched]:
    env = {"SGLANG_DDTREE_CHECK_RANKS": "1"}
    flags = ("--max-running-requests", "16")
    with Launched(PAIR.target, PAIR.drafter, ("--tp", "2", *BUDGET), flags, env) as service:
        yield service


def test_two_ranks_write_what_one_writes(
    two_ranks: Launched, oracle: Oracle, prompts: list[str]
) -> None:
    check_greedy(two_ranks, oracle, prompts)


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_two_ranks_are_on_their_cores(two_ranks: Launched) -> None:
    half = len(CORES) // 2
    if half == 1:
        check_binding(two_ranks, CORES[:2])
    cores = [set(rank.cpu_affinity()) for _, rank in two_ranks.ranks()]
    assert cores == [set(CORES[:half]), set(CORES[half:])]


def test_ranks_stay_together_under_mixed_requests(
    two_ranks: Launched, oracle: Oracle, prompts: list[str]
) -> None:
    """Greedy and sampled, streamed and aborted, with shared prefixes, all at once; the ranks
    compare their decisions in every step, and would end the server."""
    texts = prompts[:3] + prompts[4:]
    for text in texts:
        oracle.tokens(text)

    def client(number: int) -> int:
        chance = random.Random(number)
        return one_request(two_ranks, oracle, chance.choice(texts), chance)

    with ThreadPoolExecutor(REQUESTS) as clients:
        assert len(list(clients.map(client, range(REQUESTS)))) == REQUESTS
    assert wait_until(lambda: is_idle(two_ranks)), load(two_ranks)
    log = two_ranks.log()
    assert "RanksDisagree" not in log
    assert "leak" not in log
    agreed = re.findall(r"DDTREE: 2 ranks agreed in (\d+) steps", log)
    assert agreed, "the check did not run"
    check_greedy(two_ranks, oracle, texts[:2])


def test_probe_times_the_steps_of_a_service(two_ranks: Launched, tmp_path: Path) -> None:
    file = tmp_path / "probe.json"
    arguments = ["--model", str(PAIR.target), "--draft-model-path", str(PAIR.drafter)]
    arguments += ["--device", "cpu", "--tp", "2", "--budgets", "31", "--batches", "1", "3"]
    arguments += ["--iterations", "3", "--url", two_ranks.url, "--url-tp", "2"]
    arguments += ["--url-budget", "31", "--out", str(file)]
    command = [sys.executable, "-m", "sglang_ddtree.cli", "probe", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(file.read_text())
    steps = report["steps"]
    assert [(step["tp"], step["budget"], step["batch"]) for step in steps] == [
        (2, 31, 1),
        (2, 31, 3),
    ]
    assert all(step["ms"] > 0 for step in steps)
    assert [table["ranks"] for table in report["allreduce"]] == [2]
    assert f"{two_ranks.url}: 3 requests, 96 rows a step" in done.stdout


def test_a_killed_rank_ends_everything(two_ranks: Launched, prompts: list[str]) -> None:
    """The last test of this service: it is gone afterwards."""
    family = two_ranks.family()
    victim = two_ranks.ranks()[1][1]
    with ThreadPoolExecutor(4) as clients:
        options = {"max_new_tokens": 400, "ignore_eos": True}
        answers = [clients.submit(two_ranks.generate, text, **options) for text in prompts[:4]]
        assert wait_until(lambda: load(two_ranks)["num_running_reqs"] > 0)
        victim.kill()
        began = time.monotonic()
        assert two_ranks.wait(30) == 1
        assert time.monotonic() - began < 30
        for answer in answers:
            assert isinstance(answer.exception(), requests.RequestException)
    assert not still_running(family)
    (message,) = [line for line in two_ranks.messages() if "stopping" in line]
    assert f"replica 0: rank 1 (process {victim.pid}) died; stopping everything" in message


def test_two_replicas_behind_the_router(oracle: Oracle, prompts: list[str]) -> None:
    options = ("--replicas", "2", *BUDGET)
    with Launched(PAIR.target, PAIR.drafter, options) as service:
        check_greedy(service, oracle, prompts)
        assert [replica for replica, _ in service.ranks()] == [0, 1]
        if len(CORES) == 2:
            check_binding(service, CORES)
        # One prompt from the cache, all others spread: both replicas work.
        assert min(service.answers_of(0), service.answers_of(1)) > 0
        family = service.family()
        with ThreadPoolExecutor(2) as clients:
            slow = {"max_new_tokens": 300, "ignore_eos": True}
            running = [clients.submit(service.generate, text, **slow) for text in prompts[:2]]
            urls = [f"http://127.0.0.1:{service.port + 1 + i}/v1/loads" for i in range(2)]
            assert wait_until(
                lambda: (
                    sum(
                        requests.get(url, timeout=60).json()["loads"][0]["num_running_reqs"]
                        for url in urls
                    )
                    == 2
                )
            )
            os.kill(service.pid, signal.SIGTERM)
            lengths = [a.result()["meta_info"]["completion_tokens"] for a in running]
        assert lengths == [300, 300]
        assert service.wait(90) == 0
        assert not still_running(family)


@pytest.mark.skipif(
    os.environ.get("DDTREE_TEST_TP4") != "1", reason="takes minutes: DDTREE_TEST_TP4=1 runs it"
)
def test_four_ranks(oracle: Oracle, prompts: list[str], tmp_path: Path) -> None:
    """Six query heads do not divide by four; eight do, of which two say nothing."""
    target, drafter = with_more_heads(PAIR, tmp_path, heads=8)
    env = {"SGLANG_DDTREE_CHECK_RANKS": "1"}
    with Launched(target, drafter, ("--tp", "4", *BUDGET), env=env) as service:
        check_greedy(service, oracle, prompts)
        if len(CORES) == 2:
            check_binding(service, 2 * CORES)


@pytest.mark.skipif(
    os.environ.get("DDTREE_TEST_ALL_PAIRS") != "1",
    reason="takes minutes: DDTREE_TEST_ALL_PAIRS=1 runs it",
)
@pytest.mark.parametrize("name", ["tiny-hybrid", "tiny-mla", "tiny-swa"])
def test_other_pairs(name: str) -> None:
    """Two ranks, then two replicas: what one server without a tree writes."""
    pair = Pair(name)
    texts = [record["prompt"] for record in pair.prompts(6)]
    checked = {"SGLANG_DDTREE_CHECK_RANKS": "1"}
    with plain_oracle(pair) as oracle:
        for options, env in ((("--tp", "2"), checked), (("--replicas", "2"), {})):
            with Launched(pair.target, pair.drafter, (*options, *BUDGET), env=env) as service:
                check_greedy(service, oracle, texts)
                if len(CORES) == 2:
                    check_binding(service, CORES)
                family = service.family()
                os.kill(service.pid, signal.SIGTERM)
                assert service.wait(90) == 0
            assert not still_running(family)
