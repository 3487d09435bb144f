"""What the kernels take and move: compiled resources, roofline, and timings on a GPU.

--roofline and --resources need no GPU and write what they print to csrc/docs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from common.roofline import CARDS, PROCESSORS, Cost, Layer, Model, models

DOCS = Path(__file__).resolve().parents[1] / "csrc" / "docs"
BUDGETS = (15, 31, 63)
PREFIXES = (1024, 8192, 32768, 131072)
STEP_LAUNCHES = {"grow": 1, "accept": 1, "KV rows": 1, "recurrent commit": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--roofline", action="store_true", help="bytes, FLOP, floors and launches")
    task.add_argument("--resources", action="store_true", help="what nvcc and cuobjdump report")
    arguments = parser.parse_args()
    name, text = ("ROOFLINE", roofline()) if arguments.roofline else ("RESOURCES", resources())
    print(text)
    (DOCS / f"{name}.md").write_text(text + "\n", encoding="utf-8")


def resources() -> str:
    """The resource table of both architectures, after checking its limits."""
    from sglang_ddtree.ops.build import find_nvcc, toolkit_version
    from sglang_ddtree.ops.resources import measure, table

    found = measure()
    problems = [problem for x in found for problem in x.problems()]
    if problems:
        raise SystemExit("\n".join(problems))
    nvcc = find_nvcc()
    assert nvcc is not None
    return (
        "# Resources of the CUDA kernels\n\n"
        f"By nvcc {toolkit_version(nvcc)} and cuobjdump, made by `benchmark/kernels.py "
        "--resources`. Counts are of instructions in the machine code, not of their execution.\n\n"
        + table(found)
    )


def roofline() -> str:
    """One row a layer kind, budget and prefix; one request."""
    columns = ["model", "TP", "layers", "budget", "prefix"]
    columns += ["ours: memory MB", "ours: loads MB", "GFLOP"]
    columns += [f"floor µs, {card.name}" for card in CARDS]
    columns += ["launches", "blocks", "stock: memory MB", "stock: loads MB", "launches", "blocks"]
    lines = [columns, ["---"] * 3 + ["--:"] * (len(columns) - 3), *rows()]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    launches = "\n".join("| " + " | ".join(line) + " |" for line in step_rows())
    return f"""# Roofline of the verify kernels

By arithmetic on tilings and configs (`benchmark/kernels.py --roofline`); nothing here is measured.
One request, one layer, one step, on {PROCESSORS} processors. *Memory* is what has to cross the
memory bus: each prefix byte once, queries, outputs, states, the stash. *Loads* is what processors
ask for, mostly of the L2 cache: our row tiles walk the prefix, so do stock's heads and query
blocks, and partial results of splits are written and merged there. Past the L2 cache (128 MB)
re-reads become memory traffic, which only stock has to fear at these sizes. *Blocks* with keys or
states. Floors take the larger of memory over bandwidth and FLOP over the dense bfloat16 rate, which
for the RTX PRO 6000 is derived, not published. Stock is SGLang 0.5.23's Triton backend on sm_120.

{table}

## Launches a step

Beside the layers: {", ".join(STEP_LAUNCHES)}. What stock launches beside its layers is not counted.

{launches}
"""


def rows() -> Iterator[list[str]]:
    for model in models():
        for layer in model.layers:
            for budget in BUDGETS:
                for prefix in PREFIXES if layer.kind != "gdn" else PREFIXES[:1]:
                    yield _row(model, layer, budget, prefix)


def step_rows() -> Iterator[list[str]]:
    yield ["model", "TP", "ours: layers", "ours: step", "stock: layers"]
    yield ["---", "---", "--:", "--:", "--:"]
    for model in models():
        ours, stock = (
            sum(layer.count * cost.launches for layer, cost in costs)
            for costs in (
                [(layer, layer.ours(32, 1024)) for layer in model.layers],
                [(layer, layer.stock(32, 1024)) for layer in model.layers],
            )
        )
        beside = sum(STEP_LAUNCHES.values())
        if all(layer.kind != "gdn" for layer in model.layers):
            beside -= STEP_LAUNCHES["recurrent commit"]
        yield [model.name, str(model.tp), str(ours), str(ours + beside), str(stock)]


def _row(model: Model, layer: Layer, budget: int, prefix: int) -> list[str]:
    ours, stock = layer.ours(budget + 1, prefix), layer.stock(budget + 1, prefix)
    kind = layer.kind + (f", window {layer.window}" if layer.window else "")
    return [
        model.name,
        str(model.tp),
        f"{layer.count} {kind}",
        str(budget),
        "any" if layer.kind == "gdn" else f"{prefix:,}",
        *_megabytes(ours),
        f"{ours.flop / 1e9:.2f}",
        *(f"{ours.floor(card) * 1e6:.1f}" for card in CARDS),
        str(ours.launches),
        str(ours.blocks),
        *_megabytes(stock),
        str(stock.launches),
        str(stock.blocks),
    ]


def _megabytes(cost: Cost) -> tuple[str, str]:
    return f"{cost.memory / 1e6:.1f}", f"{cost.loads / 1e6:.1f}"


if __name__ == "__main__":
    main()
