"""The rules of the package: no circles, no arrow to a higher floor, SGLang where it belongs."""

from __future__ import annotations

import pytest

from unit.import_graph import circles, graph, importers_of

# From the ground up: a package imports from floors below its own, and from itself.
FLOORS = (
    {"", "errors", "home", "lifetime", "pairs", "recurrent_mode", "_kernels"},
    {"tree", "dflash"},
    {"ops"},
    {"cluster"},
    {"platform"},
    {"engine"},
    {"drafter"},
    {"cli"},
)
FLOOR_OF = {package: level for level, floor in enumerate(FLOORS) for package in floor}
# Beside the engine and the CPU platform.
SGLANG_ADAPTERS = ("cluster.probe.allreduce_probe", "drafter.upstream")


@pytest.fixture(scope="module")
def arrows() -> dict[str, set[str]]:
    return graph()


def head(module: str) -> str:
    return module.partition(".")[0]


def test_no_file_imports_itself_by_way_of_others(arrows: dict[str, set[str]]) -> None:
    assert circles(arrows) == []


def test_no_package_imports_from_a_higher_floor(arrows: dict[str, set[str]]) -> None:
    climbing = {
        f"{name} -> {other}"
        for name, others in arrows.items()
        for other in others
        if head(name) != head(other) and FLOOR_OF[head(name)] <= FLOOR_OF[head(other)]
    }
    assert climbing == set()


def test_sglang_is_imported_where_it_belongs() -> None:
    rooms = ("engine", "platform")
    elsewhere = {
        name
        for name in importers_of("sglang")
        if head(name) not in rooms and not name.startswith(SGLANG_ADAPTERS)
    }
    assert elsewhere == set()


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_the_graph_sees_arrows(arrows: dict[str, set[str]]) -> None:
    assert "tree.grow" in arrows["drafter.evaluation.analysis"]
    assert "engine.worker" in importers_of("sglang")
