"""What the tree flags resolve to."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_ddtree.engine.config_error import DDTreeConfigError
from sglang_ddtree.engine.options import (
    FLAGS_ATTRIBUTE,
    MAX_TOPK,
    TreeFlags,
    TreeOptions,
    resolve_options,
)
from sglang_ddtree.engine.startup import flags

BLOCK = 16


def arguments(
    *,
    budget: int | None = None,
    topk: int | None = None,
    spine: bool = True,
    num_draft_tokens: int | None = None,
    eagle_topk: int | None = None,
) -> Any:
    """Server arguments before resolution, as the command line leaves them."""
    return SimpleNamespace(
        speculative_num_draft_tokens=num_draft_tokens,
        speculative_eagle_topk=eagle_topk,
        **{FLAGS_ATTRIBUTE: TreeFlags(budget, topk, spine)},
    )


def resolve(max_topk: int = MAX_TOPK, **given: Any) -> TreeOptions:
    return resolve_options(arguments(**given), BLOCK, max_topk)


def test_default_is_no_wider_than_the_chain() -> None:
    options = resolve()
    assert (options.budget, options.topk, options.spine) == (15, 8, True)
    assert options.verify_width == options.window == BLOCK


@pytest.mark.parametrize("budget", [1, 14, 15, 16, 255])
def test_window_covers_draft_block_and_tree(budget: int) -> None:
    options = resolve(budget=budget)
    assert options.verify_width == budget + 1
    assert options.window == max(16, budget + 1)


@pytest.mark.parametrize("budget", [-1, 0, 256])
def test_budget_out_of_range(budget: int) -> None:
    with pytest.raises(DDTreeConfigError, match=rf"budget must be between 1 and 255, got {budget}"):
        resolve(budget=budget)


@pytest.mark.parametrize("topk", [-1, 0, 65])
def test_topk_out_of_range(topk: int) -> None:
    with pytest.raises(DDTreeConfigError, match=rf"topk must be between 1 and 64, got {topk}"):
        resolve(topk=topk)


def test_topk_of_a_tiny_vocabulary() -> None:
    assert resolve(max_topk=5).topk == 5
    assert resolve(max_topk=5, topk=5).topk == 5
    with pytest.raises(DDTreeConfigError, match="topk must be between 1 and 5, got 6"):
        resolve(max_topk=5, topk=6)


def test_sglang_spellings_mean_the_same() -> None:
    theirs = resolve(num_draft_tokens=32, eagle_topk=4)
    assert theirs == resolve(budget=31, topk=4)
    assert theirs == resolve(budget=31, topk=4, num_draft_tokens=32, eagle_topk=4)
    assert resolve(num_draft_tokens=2).budget == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": 31, "num_draft_tokens": 33}, "budget is 31 but .*num-draft-tokens minus 1"),
        ({"topk": 4, "eagle_topk": 8}, "topk is 4 but --speculative-eagle-topk is 8"),
    ],
)
def test_flags_that_disagree(given: dict[str, int], message: str) -> None:
    with pytest.raises(DDTreeConfigError, match=message):
        resolve(**given)


def test_one_draft_token_leaves_no_budget() -> None:
    with pytest.raises(DDTreeConfigError, match="got 0"):
        resolve(num_draft_tokens=1)


def test_spine_can_be_turned_off() -> None:
    assert resolve(spine=False).spine is False


def test_record_without_our_flags_gets_the_defaults() -> None:
    """``Engine(...)`` builds its record without a command line."""
    engine = SimpleNamespace(speculative_num_draft_tokens=None, speculative_eagle_topk=None)
    assert resolve_options(engine, BLOCK, MAX_TOPK) == TreeOptions(BLOCK, 15, 8, True)


def test_what_the_user_gave_wins_over_what_sglang_resolved() -> None:
    """A resolved record carries SGLang's own defaults beside the raw input."""
    resolved = arguments(num_draft_tokens=16, eagle_topk=1)
    resolved._raw_input = {"speculative_num_draft_tokens": 64, "speculative_eagle_topk": None}
    assert resolve_options(resolved, BLOCK, MAX_TOPK) == TreeOptions(BLOCK, 63, 8, True)


@pytest.mark.parametrize(
    ("budget", "spine", "chain"),
    [(14, True, True), (15, True, True), (16, True, False), (15, False, False), (1, False, False)],
)
def test_a_chain_is_a_spine_that_the_budget_does_not_pass(
    budget: int, spine: bool, chain: bool
) -> None:
    assert resolve(budget=budget, spine=spine).is_chain is chain


def test_the_stash_answers_to_its_earlier_name() -> None:
    parser = argparse.ArgumentParser()
    flags.add_arguments(None, parser)
    for given, mode in (("wy", "stash"), ("stash", "stash"), ("snapshot", "snapshot")):
        args = parser.parse_args(["--speculative-ddtree-recurrent", given])
        record = flags.keep_values(lambda cls, args: SimpleNamespace(), object, args)
        assert getattr(record, FLAGS_ATTRIBUTE) == TreeFlags(recurrent=mode)
    with pytest.raises(SystemExit):
        parser.parse_args(["--speculative-ddtree-recurrent", "other"])
