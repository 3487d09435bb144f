"""What the package uses of SGLang, read from its source: nothing is imported.

Counted are runtime imports, targets of hooks, and of classes that derive from one of SGLang's what
they override and what they read of ``self`` without having set it.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "sglang_ddtree"
UPSTREAM = Path(str(importlib.metadata.distribution("sglang").locate_file("sglang")))
DOTTED = re.compile(r"sglang(\.\w+){2,}")
Class = tuple[str, str]  # module, name


def uses() -> dict[str, set[str]]:
    """Dotted upstream path to the package's files that use it."""
    found: dict[str, set[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        name = file.relative_to(PACKAGE).as_posix()
        if name.startswith("engine/upstream/seams"):
            continue
        for path in {*imports(tree).values(), *targets(tree), *inherited(tree)}:
            found.setdefault(path, set()).add(name)
    return found


def imports(tree: ast.AST) -> dict[str, str]:
    """Local name to dotted path of what is imported from SGLang at run time."""
    found = {}
    for node in runtime_nodes(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sglang":
            found |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {
                a.asname or a.name: a.name for a in node.names if a.name.startswith("sglang.")
            }
    return found


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from runtime_nodes(child)


def targets(tree: ast.AST) -> set[str]:
    """Dotted paths in strings: what is hooked or looked up by name."""
    constants = {
        target.id: text
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and (text := text_of(node.value, {})) is not None
    }
    found = set()
    for node in ast.walk(tree):
        text = text_of(node, constants)
        if text is not None and DOTTED.fullmatch(text):
            found.add(text)
    # A prefix that other targets are made from is no target of its own.
    return {path for path in found if not any(other.startswith(path + ".") for other in found)}


def text_of(node: ast.AST, constants: dict[str, str]) -> str | None:
    """The value of a string or f-string over constants; ``None`` for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [text_of(part, constants) for part in node.values]
        return None if None in parts else "".join(part or "" for part in parts)
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
        return constants.get(node.value.id)
    return None


def inherited(tree: ast.Module) -> set[str]:
    """``Base.name`` of what our subclasses override and read."""
    names = imports(tree)
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        own = members(node)
        taken: set[str] = set()  # by an earlier base, which goes first in Python, too
        for base in node.bases:
            path = names.get(ast.unparse(base))
            if path is None:
                continue
            theirs = members_of(split(path)) - taken
            taken |= theirs
            overridden = {name for name in own if name in theirs}
            read = {name for name in attributes_read(node) if name not in own and name in theirs}
            found |= {f"{path}.{name}" for name in overridden | read}
    return {path for path in found if not path.rsplit(".", 1)[1].startswith("__")}


def attributes_read(node: ast.ClassDef) -> set[str]:
    """Names after ``self.`` and ``super().``."""
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and ast.unparse(each.value) in ("self", "super()")
    }


def members(node: ast.ClassDef) -> set[str]:
    """Methods, class attributes, and what its methods assign to ``self``."""
    found = set()
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(each.name)
        found |= {target.id for target in assigned(each) if isinstance(target, ast.Name)}
    for each in ast.walk(node):
        found |= {
            target.attr
            for target in assigned(each)
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
        }
    return found


def assigned(node: ast.AST) -> Iterable[ast.expr]:
    """Targets of an assignment, tuples taken apart."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = list(node.targets)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    return [each for one in targets for each in getattr(one, "elts", [one])]


def split(path: str) -> Class:
    module, _, name = path.rpartition(".")
    return module, name


@functools.cache
def module(name: str) -> ast.Module | None:
    """Parsed source of an upstream module."""
    base = UPSTREAM.parent.joinpath(*name.split("."))
    for file in (base.with_suffix(".py"), base / "__init__.py"):
        if file.is_file():
            return ast.parse(file.read_text(encoding="utf-8"))
    return None


@functools.cache
def members_of(path: Class) -> frozenset[str]:
    """Members of an upstream class and of the upstream classes it derives from."""
    tree = module(path[0])
    if tree is None:
        return frozenset()
    names = imports(tree)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == path[1]:
            found = members(node)
            for base in node.bases:
                base_name = ast.unparse(base)
                found |= members_of(split(names.get(base_name, f"{path[0]}.{base_name}")))
            return frozenset(found)
    return members_of(split(names[path[1]])) if path[1] in names else frozenset()
