"""Aligned text tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lines under a header; the first column is flush left, the others flush right."""
    lines = [list(columns), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]

    def render(line: Sequence[str]) -> str:
        head, *cells = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        return "  ".join([head.strip().ljust(widths[0]), *cells]).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([render(lines[0]), rule, *map(render, lines[1:])])
