"""A soak's findings in Markdown."""

from __future__ import annotations

from typing import Any

from sglang_ddtree.drafter.table import table
from soaking.state import State


def _accept_lengths(state: State) -> list[float]:
    """Tokens a decode step, for each thousand calls."""
    ordered = sorted(state.accepted.items(), key=lambda item: int(item[0]))
    return [tokens / steps for _, (tokens, steps) in ordered if steps]


def _life_row(number: int, censuses: list[dict[str, Any]]) -> list[str]:
    first, middle, last = censuses[0], censuses[len(censuses) // 2], censuses[-1]
    calls = last["at"] - middle["at"]
    slope = 1000 * (last["rss_mb"] - middle["rss_mb"]) / calls if calls else 0.0
    return [
        f"{number}, calls {first['at']} to {last['at']}",
        *(f"{first[key]} / {last[key]}" for key in ("processes", "threads", "handles", "slots")),
        f"{first['rss_mb']:.0f} / {last['rss_mb']:.0f}",
        f"{slope:+.2f}",
    ]


def render(state: State) -> str:
    """The whole report."""
    counts = state.counts
    options = ", ".join(f"{name} {value}" for name, value in state.options.items())
    rate = state.done / state.seconds if state.seconds else 0.0
    kinds = ", ".join(f"{name} {count}" for name, count in state.kinds.most_common())
    reasons = ", ".join(f"{name or 'none'} {count}" for name, count in state.reasons.most_common())
    lengths = _accept_lengths(state)
    lines = [
        f"# Soak: {state.done} calls, {counts['faults']} faults",
        "",
        f"- Options: {options}.",
        f"- Time: {state.seconds / 3600:.2f} h, {rate:.1f} calls/s.",
        f"- Calls: {kinds}.",
        f"- Ends of outputs: {reasons}.",
        f"- Tokens: {counts['tokens']}; retractions: {counts['retractions']}; refused requests: "
        f"{counts['refused']}; readers that left: {counts['left']}.",
        f"- Compared with plain decoding: {counts['compared']} answers, {counts['equal']} equal, "
        f"{counts['near tie']} excused by a near tie, {counts['different']} differ.",
    ]
    if lengths:
        lines.append(
            f"- Accept length by thousands of calls: first {lengths[0]:.2f}, last "
            f"{lengths[-1]:.2f}, least {min(lengths):.2f}, greatest {max(lengths):.2f}."
        )
    columns = ["server, first / last", "processes", "threads", "file handles", "KV slots"]
    rows = [_life_row(i + 1, life) for i, life in enumerate(state.lives) if life]
    columns += ["RSS, MB", "MB per 1,000 calls, second half"]
    lines += [
        "",
        "Idle servers, after their first calls and at the end:",
        "",
        "```text",
        table(columns, rows),
        "```",
    ]
    if state.faults:
        lines += ["", "## Faults", "", *(f"- {fault}" for fault in state.faults)]
    return "\n".join(lines) + "\n"
