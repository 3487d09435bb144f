"""The cost model against published figures, from its inputs, within the error stated here."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_ddtree.cluster.facts.acceptance import CHAT, HYBRID_CODE, MATH, AcceptanceCurve
from sglang_ddtree.cluster.facts.allreduce import (
    NCCL,
    NCCL_TUNED,
    ONE_SHOT,
    PCIE_IPC,
    PUBLISHED_TABLES,
    AllReduceFigures,
    AllReduceTable,
    Latency,
    read_tables,
)
from sglang_ddtree.cluster.facts.model_facts import (
    KIMI_K2,
    MODELS,
    QWEN3_8B,
    QWEN36_27B,
    model_facts,
)
from sglang_ddtree.cluster.planning.cost import (
    Constants,
    Figures,
    Placement,
    StepTime,
    step_time,
    verify_ms,
)
from sglang_ddtree.cluster.planning.memory import Load, memory_bill

KIB = 1024
ONE_SOCKET_TP4 = Placement(4, crosses=False, transport=NCCL)
BOTH_SOCKETS_TP8 = Placement(8, crosses=True, transport=NCCL)


def plain(context: int = 1, element: int = 2) -> Load:
    """One request without speculation."""
    return Load(batch=1, context=context, budget=0, kv_element_bytes=element)


def tree(budget: int, context: int = 1) -> Load:
    """One request with a tree, verified with a state for every node as the published runs were."""
    return Load(batch=1, context=context, budget=budget, recurrent_mode="snapshot")


# Published figure in ms, stated error, prediction. All are single requests.
FACTS = {
    "Qwen3.6-27B TP1 without speculation: 26 tok/s": (
        1e3 / 26,
        0.05,
        lambda: step_time(QWEN36_27B, Placement(1), plain()).total,
    ),
    "Qwen3.6-27B TP1 budget 32: 92 tok/s at 5 tokens a step": (
        5e3 / 92,
        0.10,
        lambda: step_time(QWEN36_27B, Placement(1), tree(32)).total,
    ),
    "Qwen3.6-27B TP1 budget 64: 64.3 tok/s at 4 tokens a step": (
        4e3 / 64.3,
        0.10,
        lambda: step_time(QWEN36_27B, Placement(1), tree(64)).total,
    ),
    # The one figure that a constant was fitted to.
    "K2.6 TP8, tuned NCCL, fp8 KV: 92.4 tok/s": (1e3 / 92.4, 0.03, lambda: kimi_plain(1)),
    "the same at 16k: 81.5": (1e3 / 81.5, 0.05, lambda: kimi_plain(16 * KIB)),
    "the same at 32k: 73.4": (1e3 / 73.4, 0.05, lambda: kimi_plain(32 * KIB)),
    "the same at 64k: 60.5": (1e3 / 60.5, 0.05, lambda: kimi_plain(64 * KIB)),
    "the same at 128k: 46.1": (1e3 / 46.1, 0.05, lambda: kimi_plain(128 * KIB)),
    # EAGLE-3 with three draft tokens verifies four rows.
    "Kimi TP8 verify cycle with EAGLE-3, NCCL as it comes: 30 ms": (
        30.0,
        0.20,
        lambda: verify_cycle(step_time(KIMI_K2, BOTH_SOCKETS_TP8, tree(3))),
    ),
}


def kimi_plain(context: int) -> float:
    place = Placement(8, crosses=True, transport=NCCL_TUNED)
    return step_time(KIMI_K2, place, plain(context, element=1)).total


def verify_cycle(step: StepTime) -> float:
    return step.verify + step.verify_reduces.typical


@pytest.mark.parametrize("name", FACTS)
def test_published_figures_within_the_stated_error(name: str) -> None:
    published, error, predict = FACTS[name]
    assert predict() == pytest.approx(published, rel=error)


def test_kimi_verify_is_communication_with_untuned_nccl_and_inside_the_range() -> None:
    step = step_time(KIMI_K2, BOTH_SOCKETS_TP8, tree(3))
    assert step.verify_reduces.typical > step.verify
    assert step.verify + step.verify_reduces.low < 30 < step.verify + step.verify_reduces.high


def test_kimi_verify_of_four_rows_lies_between_a_plain_step_and_an_eagle_cycle() -> None:
    """K2.6 on the tuned box: 10.8 ms plain, 18.7 ms for a cycle of 2.278 tokens at 122 tok/s."""
    step = step_time(KIMI_K2, Placement(8, crosses=True, transport=NCCL_TUNED), tree(3))
    assert 10.8 < verify_cycle(step) < 2.278e3 / 122


@pytest.mark.parametrize(("layers", "error"), [(62, 0.20), (78, 0.10)])
def test_pcie_ipc_saves_what_sglang_measured(layers: int, error: float) -> None:
    """TPOT 21.14 -> 13.62 ms at TP8 (pcie_ipc_ar.py@0.5.23), for a hidden size of 6144. The text
    names no model; those of this size had 62 (Qwen3-Coder-480B) or 78 (GLM-5) layers. The box is
    like the one with the faster NCCL table."""
    model = replace(KIMI_K2, hidden=6144, layers=layers)
    slow = step_time(model, BOTH_SOCKETS_TP8, plain(8 * KIB)).low
    fast = step_time(model, replace(BOTH_SOCKETS_TP8, transport=PCIE_IPC), plain(8 * KIB)).total
    assert slow - fast == pytest.approx(21.14 - 13.62, rel=error)


def test_nccl_measured_alone_cannot_be_what_a_step_pays() -> None:
    """Why that table is kept out of predictions: 124 reductions alone would exceed the step."""
    (alone,) = [table for table in PUBLISHED_TABLES if table.alone]
    others = AllReduceFigures(tuple(table for table in PUBLISHED_TABLES if not table.alone))
    for size in (12 * KIB, 224 * KIB):
        expected = others.latency(NCCL, 8, True, size)
        assert AllReduceFigures().latency(NCCL, 8, True, size) == expected
    assert 2 * 62 * alone.at(12 * KIB) / 1e3 > 21.14
    ipc = next(table for table in PUBLISHED_TABLES if table.transport == PCIE_IPC)
    for size, ratio in ((12, 38.8), (96, 38.2), (384, 33.8)):
        assert alone.at(size * KIB) / ipc.at(size * KIB) == pytest.approx(ratio, rel=0.01)


@pytest.mark.parametrize("budget", [0, 15])
def test_tp8_is_slower_than_tp4_for_one_qwen_request(budget: int) -> None:
    load = tree(budget) if budget else plain()
    tp4 = step_time(QWEN36_27B, ONE_SOCKET_TP4, load)
    tp8 = step_time(QWEN36_27B, BOTH_SOCKETS_TP8, load)
    assert tp8.verify < tp4.verify
    assert tp8.total > tp4.total


def test_tp8_loses_even_with_the_faster_nccl_table_without_a_tree() -> None:
    tp4 = step_time(QWEN36_27B, ONE_SOCKET_TP4, plain())
    assert step_time(QWEN36_27B, BOTH_SOCKETS_TP8, plain()).low > tp4.total


def test_tp8_wins_where_reductions_are_cheap() -> None:
    """The order of TP4 and TP8 comes from the tables, not from the number of ranks."""
    cheap = replace(BOTH_SOCKETS_TP8, transport=PCIE_IPC)
    tp4 = step_time(QWEN36_27B, ONE_SOCKET_TP4, tree(15))
    assert step_time(QWEN36_27B, cheap, tree(15)).total < tp4.total


def test_node_snapshots_cost_what_their_bytes_cost() -> None:
    """Writing 16, 33 or 65 fp32 states and reading the parents: 3.2, 6.6 and 13.1 ms at 1.5 TB/s
    by the state alone; windows, and the committed state, come on top."""
    constants = Constants(bandwidth=1.5e12)
    for budget, published in ((15, 3.2), (32, 6.6), (64, 13.1)):
        snapshots = verify_ms(QWEN36_27B, 1, tree(budget), constants)
        stash = verify_ms(QWEN36_27B, 1, replace(tree(budget), recurrent_mode="stash"), constants)
        assert snapshots - stash == pytest.approx(published, rel=0.05)


def test_kimi_cache_and_qwen_state_sizes() -> None:
    assert KIMI_K2.kv[0].row_bytes(8, 1) * 128_800 == pytest.approx(4.53e9, rel=0.01)
    assert QWEN36_27B.recurrent is not None
    assert QWEN36_27B.recurrent.state_bytes == pytest.approx(153.9e6, rel=0.01)


def test_experts_read_grow_with_the_tree_and_never_beyond_all() -> None:
    assert KIMI_K2.experts_touched(1) == pytest.approx(8)
    widths = [KIMI_K2.experts_touched(tokens) for tokens in (1, 4, 16, 64, 4096)]
    assert widths == sorted(widths)
    assert widths[-1] == pytest.approx(384)


loads = st.builds(
    Load,
    batch=st.integers(1, 64),
    context=st.integers(1, 32_768),
    budget=st.integers(0, 255),
    recurrent_mode=st.sampled_from(["stash", "snapshot"]),
)


@given(loads, st.sampled_from(sorted(MODELS)), st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=60, deadline=None)
def test_more_work_takes_no_less_time_and_memory(load: Load, name: str, tp: int) -> None:
    model, place = MODELS[name], Placement(tp, crosses=tp == 8, transport=NCCL)
    step = step_time(model, place, load)
    assert 0 < step.low <= step.total * (1 + 1e-9) <= step.high * (1 + 2e-9)
    for more in (
        replace(load, batch=load.batch + 1),
        replace(load, context=load.context + 512),
        replace(load, budget=load.budget + 8),
    ):
        assert memory_bill(model, tp, more).total >= memory_bill(model, tp, load).total
        # NCCL's published table dips between 8 and 32 KiB, so compare without reductions.
        grown = step_time(model, place, more)
        assert grown.verify + grown.draft >= step.verify + step.draft


@given(st.integers(1, 1 << 22), st.sampled_from(PUBLISHED_TABLES))
@settings(max_examples=80, deadline=None)
def test_interpolation_stays_between_its_points(size: int, table: AllReduceTable) -> None:
    times = [time for _, time in table.points]
    value = table.at(size)
    assert value >= min(times) - 1e-9
    if size <= table.points[-1][0]:
        assert value <= max(times) + 1e-9
    for known, time in table.points:
        assert table.at(known) == pytest.approx(time)


def test_latency_is_the_geometric_middle_of_the_tables() -> None:
    one = AllReduceTable(NCCL, 8, True, ((1024.0, 10.0),), "one")
    other = AllReduceTable(NCCL, 8, True, ((1024.0, 1000.0),), "other")
    latency = AllReduceFigures((one, other)).latency(NCCL, 8, True, 5)
    assert (latency.low, latency.high, latency.bound) == (10, 1000, False)
    assert latency.typical == pytest.approx(100)


def test_missing_groups_borrow_an_upper_bound_or_raise() -> None:
    figures = AllReduceFigures()
    four = figures.latency(NCCL, 4, False, 8 * KIB)
    assert figures.latency(NCCL, 2, False, 8 * KIB) == replace(four, bound=True)
    straddling = figures.latency(NCCL, 4, True, 8 * KIB)
    assert straddling.bound
    assert straddling.typical > four.typical
    with pytest.raises(LookupError, match="nccl over 16 ranks of one socket: run the probe"):
        figures.latency(NCCL, 16, False, 1)
    with pytest.raises(LookupError, match="nvlink over 8 ranks"):
        figures.latency("nvlink", 8, False, 1)


PROBE = {
    "allreduce": [
        {"transport": NCCL, "ranks": 8, "crosses": True, "points": [[8192, 30], [262_144, 42.5]]}
    ],
    "constants": {"bandwidth": 1.6e12, "host_us": 0},
}


def test_a_probe_replaces_the_tables_of_its_groups() -> None:
    figures = Figures().with_probe(PROBE, "probe.json")
    assert figures.allreduce.latency(NCCL, 8, True, 8192) == Latency(30, pytest.approx(30), 30)
    published = AllReduceFigures().latency(ONE_SHOT, 4, False, 8192)
    assert figures.allreduce.latency(ONE_SHOT, 4, False, 8192) == published
    assert (figures.constants.bandwidth, figures.constants.host_us) == (1.6e12, 0)
    assert figures.constants.throughput == Constants().throughput
    step = step_time(KIMI_K2, BOTH_SOCKETS_TP8, plain(), figures)
    assert step.verify_reduces.typical == pytest.approx(123 * (30 + 12.5 * 6144 / 253_952) / 1e3)
    assert step.host == 0


@pytest.mark.parametrize(
    "entry",
    [
        {"ranks": 8, "crosses": True, "points": [[1, 1]]},
        {"transport": NCCL, "ranks": 8, "crosses": True, "points": [[2, 1], [1, 1]]},
        {"transport": NCCL, "ranks": 8, "crosses": True, "points": [[1, -1]]},
        {"transport": NCCL, "ranks": 8, "crosses": True, "points": [[1]]},
    ],
)
def test_a_broken_probe_is_named(entry: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"probe\.json: allreduce\[1\]"):
        read_tables({"allreduce": [PROBE["allreduce"][0], entry]}, "probe.json")


def test_unknown_constants_are_named() -> None:
    with pytest.raises(ValueError, match=r"unknown constants \['speed'\]"):
        Figures().with_probe({"constants": {"speed": 1}})


def test_a_single_rank_reduces_nothing() -> None:
    step = step_time(QWEN3_8B, Placement(1), tree(31))
    assert (step.draft_reduces.high, step.verify_reduces.high) == (0, 0)


def test_acceptance_curves() -> None:
    assert MATH.tokens(0) == 1
    assert MATH.tokens(64) == 9.75
    assert 9.75 < MATH.tokens(90) < 10.2
    assert MATH.tokens(4096) == MATH.tokens(512)
    for curve in (MATH, CHAT, HYBRID_CODE):
        tokens = [curve.tokens(budget) for budget in range(0, 600, 3)]
        assert tokens == sorted(tokens)
    with pytest.raises(ValueError, match="ascend"):
        AcceptanceCurve(((8, 2.0), (4, 3.0)), "wrong", measured=True)


def test_facts_by_any_name() -> None:
    for name in ("Kimi-K2.5", "moonshotai/Kimi-K2.6", "kimi-k2.6"):
        assert model_facts(name) is KIMI_K2
    assert model_facts("Qwen/Qwen3-Next-80B-A3B-Instruct").experts == 512
    with pytest.raises(KeyError, match=r"or one of .*qwen3-8b"):
        model_facts("gpt-2")


@pytest.mark.parametrize("name", sorted(MODELS))
def test_facts_are_consistent(name: str) -> None:
    model = MODELS[name]
    attention = sum(kv.layers for kv in model.kv)
    recurrent = model.recurrent.layers if model.recurrent else 0
    assert attention + recurrent == model.layers
    assert model.expert_bytes + model.embedding_bytes + model.head_bytes < model.weight_bytes
    assert set(model.uncertain) <= set(model.sources)
    assert {"config", "weight_bytes", "active_params", "drafter"} <= set(model.sources)
