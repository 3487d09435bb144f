"""Every ``file:line@0.5.23`` points at a line that has to do with the text around it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from unit.upstream_use import PACKAGE, ROOT, UPSTREAM

CITATION = re.compile(
    r"\b((?:srt|kernels|jit_kernel|benchmark)/[\w/.]+?\.py)((?::\d+(?:,\s?\d+)*)?)@0\.5\.23"
)
WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]{3,}")
CODE_AFTER = 6  # lines of code that a comment speaks of
NEAR = 12  # lines: a citation may point at the head of a block


class Citation(NamedTuple):
    where: str
    file: str
    line: int
    text: str  # the docstring or comment that it stands in, and the code right after a comment


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """Docstrings and runs of comment lines with the code that they speak of, and where."""
    source = file.read_text(encoding="utf-8")
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring is not None:
                code = source if isinstance(node, ast.Module) else ast.unparse(node)
                yield node.body[0].lineno, f"{docstring} {' '.join(WORD.findall(code))}"
    run: list[int] = []
    comments = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    for number in sorted(comments):
        run.append(number)
        if number + 1 not in comments:
            around = lines[run[0] - 1 : number + CODE_AFTER]
            yield run[0], " ".join(line.strip().lstrip("# ") for line in around)
            run = []


def citations() -> list[Citation]:
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        for start, text in texts(file):
            joined = re.sub(r"\s+", " ", text)
            for match in CITATION.finditer(joined):
                where = f"{file.relative_to(ROOT)}:{start}"
                lines = [int(number) for number in re.findall(r"\d+", match[2])] or [0]
                found += [Citation(where, match[1], line, joined) for line in lines]
    return found


CITATIONS = citations()


@pytest.mark.parametrize("citation", CITATIONS, ids=lambda c: f"{c.where}-{c.file}:{c.line}")
def test_citation_points_at_what_it_names(citation: Citation) -> None:
    file = UPSTREAM / citation.file
    assert file.is_file(), f"{citation.where}: there is no {citation.file}"
    lines = file.read_text(encoding="utf-8").splitlines()
    assert citation.line <= len(lines), f"{citation.where}: {citation.file} is shorter"
    # Identifiers of the text, its citations aside.
    text = CITATION.sub(" ", citation.text)
    quoted = set(WORD.findall(" ".join(re.findall(r"``(.+?)``", text))))
    names = quoted | {
        word for word in WORD.findall(text) if "_" in word or any(c.isupper() for c in word[1:])
    }
    cited = lines if not citation.line else lines[max(0, citation.line - 4) : citation.line + NEAR]
    assert names & set(WORD.findall("\n".join(cited))), (
        f"{citation.where}: nothing that the text names stands near {citation.file}:{citation.line}"
    )


def test_there_are_citations() -> None:
    assert len(CITATIONS) > 50
