"""Which file of the package imports which, read from the source, type-only imports included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx

from unit.upstream_use import runtime_nodes

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "sglang_ddtree"
NAME = PACKAGE.name


def modules() -> dict[str, Path]:
    """Dotted name inside the package to file; the package itself is the empty name."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = file
    return found


def graph() -> dict[str, set[str]]:
    """Every module and the modules of the package that it imports, anywhere in its code."""
    known = modules()
    return {name: set(_imports(file, known)) - {name} for name, file in known.items()}


def _imports(file: Path, known: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            paths = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # What is imported may be a module or a name in one.
            paths = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for path in paths:
            if path != NAME and not path.startswith(NAME + "."):
                continue
            inside = path.removeprefix(NAME).lstrip(".")
            while inside not in known:
                inside = inside.rpartition(".")[0]
            yield inside


def importers_of(package: str) -> set[str]:
    """Modules that import another distribution's package, type-only imports left out."""
    found = set()
    for name, file in modules().items():
        for node in runtime_nodes(ast.parse(file.read_text(encoding="utf-8"))):
            heads = []
            if isinstance(node, ast.Import):
                heads = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                heads = [node.module or ""]
            if any(head.split(".")[0] == package for head in heads):
                found.add(name)
    return found


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach one another."""
    groups = networkx.strongly_connected_components(networkx.DiGraph(arrows))
    return sorted(sorted(group) for group in groups if len(group) > 1)
