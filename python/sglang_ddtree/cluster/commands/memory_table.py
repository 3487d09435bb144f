"""Memory of one GPU by tensor-parallel size and by how recurrent layers verify a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sglang_ddtree.cluster.facts.models import ModelFacts
from sglang_ddtree.cluster.planning.memory import Load, gb, memory_bill
from sglang_ddtree.recurrent_mode import RECURRENT_MODES

SIZES = (1, 4, 8)
_AT_THE_END = ("graphs", "workspace")  # after what only one mode has


def memory_rows(
    model: ModelFacts, load: Load, capacity: int, sizes: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """One row for each size that the heads allow, and for hybrid targets for each mode.

    capacity: bytes of a GPU. sizes: tensor-parallel ones, 1, 4 and 8 by default. The load is that
    of one replica.
    """
    rows = []
    modes = RECURRENT_MODES if model.recurrent and load.budget else RECURRENT_MODES[:1]
    for tp in sizes or SIZES:
        if model.tp_obstacle(tp):
            continue
        for mode in modes:
            bill = memory_bill(model, tp, replace(load, recurrent_mode=mode))
            rows.append(
                {
                    "tp": tp,
                    "recurrent": mode if model.recurrent else None,
                    "bytes": {item.label: item.amount for item in bill.items},
                    "total": bill.total,
                    "fits": bill.total <= capacity,
                }
            )
    return rows


def memory_table(
    model: ModelFacts, load: Load, capacity: int, sizes: Sequence[int] | None = None
) -> list[str]:
    """The rows as text in GB; the sum against the memory of a GPU says whether it fits."""
    rows = memory_rows(model, load, capacity, sizes)
    labels = list(dict.fromkeys(label for row in rows for label in row["bytes"]))
    labels.sort(key=lambda label: label in _AT_THE_END)
    lines = [" ".join([f"{'':12}", *(f"{label:>11}" for label in [*labels, "total"])])]
    for row in rows:
        head = f"TP{row['tp']}" + (f" {row['recurrent']}" if row["recurrent"] else "")
        cells = [_cell(row["bytes"].get(label)) for label in labels]
        lines.append(
            " ".join([f"{head:12}", *cells, _cell(row["total"])]) + _verdict(row, capacity)
        )
    if model.recurrent and load.budget:
        lines.append(_shrinkage(model, load))
    return lines


def _cell(amount: int | None) -> str:
    return f"{'-':>11}" if amount is None else f"{amount / 1e9:>11.2f}"


def _verdict(row: dict[str, Any], capacity: int) -> str:
    if row["fits"]:
        return f"  fits {gb(capacity)}"
    return f"  does not fit {gb(capacity)}: {gb(row['total'] - capacity)} over"


def _shrinkage(model: ModelFacts, load: Load) -> str:
    assert model.recurrent is not None
    state, stash = model.recurrent.state_bytes, model.recurrent.stash_bytes(1)
    return (
        f"a node: {state / 1e6:.1f} MB as a snapshot, {stash / 1e6:.2f} MB in the stash, "
        f"1/{state / stash:.0f}; {load.nodes} nodes a request"
    )
