"""Host work of a step: a fixed number of operations and no value ever read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sglang_ddtree.tree import Candidates, GrowthPolicy, accept, grow

FORBIDDEN = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "item"}


class Recorder(TorchDispatchMode):
    """Names of the operations dispatched, and of those that make the host wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []
        self.syncs: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        self.operations.append(name)
        by_mask = name.startswith(("index", "_index", "_unsafe_index")) and any(
            isinstance(item, torch.Tensor) and item.dtype == torch.bool
            for argument in args[1:]
            for item in (argument if isinstance(argument, (list, tuple)) else [argument])
        )
        if name in FORBIDDEN or by_mask:
            self.syncs.append(name)
        return func(*args, **(kwargs or {}))


def record(run: Callable[[], Any]) -> Recorder:
    run()  # index tables are made at the first call of a shape
    with Recorder() as recorder:
        run()
    return recorder


def candidates_of(bs: int, conditional: bool, device: str = "cpu") -> Candidates:
    candidates = Candidates.from_logits(torch.zeros(bs, 15, 50, device=device), 8)
    if not conditional:
        return candidates
    transitions = torch.zeros(bs, 14, 8, 8, device=device)
    return Candidates(candidates.tokens, candidates.log_probs, transitions)


def step(bs: int, budget: int, spine: bool, conditional: bool, limited: bool) -> Callable[[], Any]:
    """Growth and acceptance, as a worker runs them."""
    candidates = candidates_of(bs, conditional)
    roots = torch.zeros(bs, dtype=torch.int64)
    target = torch.zeros(bs, budget + 1, dtype=torch.int64)
    max_depth = torch.full((bs,), 9) if limited else None

    def run() -> None:
        tree = grow(candidates, roots, GrowthPolicy(budget, spine), max_depth=max_depth)
        accept(tree, target, 15)

    return run


@pytest.mark.parametrize("spine", [True, False])
@pytest.mark.parametrize("conditional", [True, False])
@pytest.mark.parametrize("limited", [True, False])
def test_operations_do_not_depend_on_budget_or_batch(
    spine: bool, conditional: bool, limited: bool
) -> None:
    shapes = [(1, 15), (1, 31), (3, 64), (7, 255)]
    recorders = [record(step(bs, n, spine, conditional, limited)) for bs, n in shapes]
    assert recorders[0].operations
    for recorder in recorders:
        assert recorder.operations == recorders[0].operations
        assert recorder.syncs == []


def test_operations_of_candidates_do_not_depend_on_shapes() -> None:
    def run(bs: int, vocab: int, topk: int) -> Recorder:
        logits = torch.zeros(bs, 15, vocab)
        return record(lambda: Candidates.from_logits(logits, topk))

    small, large = run(1, 10, 4), run(7, 3000, 16)
    assert small.operations == large.operations
    assert small.syncs == large.syncs == []


@pytest.mark.parametrize(
    "sync",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.masked_select(x > 0),
        lambda x: x.__setitem__(x > 0, x[:1]),
    ],
)
def test_the_recorder_sees_host_syncs(sync: Callable[[torch.Tensor], Any]) -> None:
    with Recorder() as recorder:
        sync(torch.ones(3))
    assert recorder.syncs


@pytest.mark.parametrize("spine", [True, False])
@pytest.mark.parametrize("conditional", [True, False])
def test_a_step_needs_no_values(spine: bool, conditional: bool) -> None:
    """On the meta device tensors have no values, so reading one back is an error."""
    candidates = candidates_of(2, conditional, device="meta")
    roots = torch.zeros(2, dtype=torch.int64, device="meta")
    max_depth = torch.zeros(2, dtype=torch.int32, device="meta")
    tree = grow(candidates, roots, GrowthPolicy(70, spine), max_depth=max_depth)
    acceptance = accept(tree, torch.zeros(2, 71, dtype=torch.int64, device="meta"), 15)
    assert tree.ancestors.shape == (2, 71, 2)
    assert acceptance.path.shape == (2, 16)
    assert acceptance.path.is_meta
