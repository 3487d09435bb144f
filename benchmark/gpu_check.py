"""Checks every kernel on a GPU against float64, times it, and writes a JSON and a Markdown report.

Needs torch, triton and nvcc, no network. Started by scripts/gpu_check.sh.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from pathlib import Path

import torch
from common.gpu_cases import CHECKS, Result
from common.gpu_timing import TIMINGS, Timing

from sglang_ddtree.ops.dispatch import Device

RESULTS = Path(__file__).resolve().parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the reports")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**31, help="of the inputs")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("gpu_check: torch finds no CUDA device here")
    device = Device.of("cuda")
    results: list[Result] = []
    for check in CHECKS:
        for result in check(device, arguments.seed):
            results.append(result)
            print(result.line(), flush=True)
    timings: list[Timing] = []
    for timing in TIMINGS:
        for measured in timing(device):
            timings.append(measured)
            print(measured.line(), flush=True)
    write(arguments.out, arguments.seed, results, timings)
    failed = [result.name for result in results if not result.passed]
    if failed:
        raise SystemExit("gpu_check: FAILED: " + ", ".join(failed))


def write(folder: Path, seed: int, results: list[Result], timings: list[Timing]) -> None:
    """`kernels-CARD-DATE.json` and `.md`."""
    card = torch.cuda.get_device_name()
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    facts = {
        "card": card,
        "date": date,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
        "seed": seed,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"kernels-{card.replace(' ', '-').lower()}-{date}"
    report = {
        **facts,
        "checks": [vars(result) for result in results],
        "timings": [vars(timing) for timing in timings],
    }
    path.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    lines = [f"# Kernels on {card}, {date}", "", f"`{json.dumps(facts)}`", "", "## Checks", ""]
    lines += ["| kernel | largest error | allowed | |", "|---|--:|--:|---|"]
    lines += [
        f"| {x.name} | {x.error:.2e} | {x.allowed:.0e} | {'ok' if x.passed else '**FAILED**'} |"
        for x in results
    ]
    lines += ["", "## Timings", "", "Medians in µs, caches rotated so that L2 holds none.", ""]
    lines += [
        "| kernel | ours | torch | ratio | floor | of the floor |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {x.name} | {x.ours:.1f} | {x.baseline:.1f} | {x.baseline / x.ours:.2f} | {x.floor:.1f} "
        f"| {x.floor / x.ours:.0%} |"
        for x in timings
    ]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {path}.json and .md")


if __name__ == "__main__":
    main()
