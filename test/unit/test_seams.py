"""The seam table itself: that it notices what it is for."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from sglang_ddtree.engine.upstream import seams
from sglang_ddtree.engine.upstream.seams import Seam
from unit import upstream_use

ALL = seams.SEAMS + seams.CPU_SEAMS + seams.TOOL_SEAMS


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that stands in for SGLang."""
    module = ModuleType("stand_in_upstream")

    class Worker:
        limit = 3
        clock: float

        def __init__(self) -> None:
            self.queue: list[int] = []

        def step(self, batch: object, *, barrier: object = None) -> None: ...

    module.Worker = Worker  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


STEP = "stand_in_upstream.Worker.step"


@pytest.mark.usefixtures("upstream")
def test_seam_that_fits() -> None:
    assert Seam(STEP, ("batch", "barrier"), "run a step").problem() is None
    assert Seam(STEP, ("barrier",), "run a step").problem() is None
    assert Seam("stand_in_upstream.Worker.limit", (), "know the limit").problem() is None


@pytest.mark.usefixtures("upstream")
@pytest.mark.parametrize("name", ["queue", "clock"])
def test_attribute_that_instances_have(name: str) -> None:
    assert Seam(f"stand_in_upstream.Worker.{name}", (), "look at it").problem() is None


@pytest.mark.usefixtures("upstream")
@pytest.mark.parametrize(
    "path",
    ["stand_in_upstream.Worker.stop", "stand_in_upstream.Other.step", "no_such_module.Worker.step"],
)
def test_symbol_that_is_gone(path: str) -> None:
    problem = Seam(path, (), "run a step").problem()
    assert problem is not None
    assert path in problem
    assert "run a step" in problem


@pytest.mark.usefixtures("upstream")
def test_parameter_that_is_gone() -> None:
    problem = Seam(STEP, ("batch", "on_publish"), "run a step").problem()
    assert problem is not None
    assert "['on_publish']" in problem


def test_every_seam_says_why_and_names_sglang_once() -> None:
    paths = [seam.path for seam in ALL]
    assert len(paths) == len(set(paths))
    for seam in ALL:
        assert seam.path.startswith("sglang.")
        assert seam.why


def test_every_use_of_sglang_has_a_row() -> None:
    """Imports, hooked symbols, and what subclasses override and read; derived from the source."""
    rows = {seam.path for seam in ALL}
    missing = {
        path: sorted(files)
        for path, files in upstream_use.uses().items()
        if path not in rows and not any(row.startswith(path + ".") for row in rows)
    }
    assert missing == {}


def test_the_derivation_sees_each_kind_of_use() -> None:
    """It is not satisfied because it finds nothing."""
    found = upstream_use.uses()
    worker = "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2"
    assert "engine/worker.py" in found[f"{worker}._tp_sync"], "read of self"
    assert "engine/worker.py" in found[f"{worker}.prewarm_sampling"], "overridden"
    assert "engine/worker.py" in found["sglang.srt.speculative.spec_utils.draft_tp_context"]
    assert "sglang.srt.server_args.ServerArgs.from_cli_args" in found, "hooked through an f-string"


def test_rows_of_the_cpu_platform_are_asked_for_on_it_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sglang_ddtree.platform.activate", lambda: None)
    assert seams.relevant() == seams.SEAMS
    monkeypatch.setattr("sglang_ddtree.platform.activate", lambda: "a platform")
    assert seams.relevant() == seams.SEAMS + seams.CPU_SEAMS


def test_another_version_comes_first(monkeypatch: pytest.MonkeyPatch, upstream: ModuleType) -> None:
    """All reasons are listed, the one that explains the others at the top."""
    row = Seam("stand_in_upstream.Worker.stop", (), "stop")
    monkeypatch.setattr(seams, "relevant", lambda: (row,))
    monkeypatch.setattr(seams, "installed_version", lambda: "0.5.99")
    first, second = seams.problems()
    assert "sglang 0.5.99 is installed" in first
    assert f"pip install sglang=={seams.SGLANG_VERSION}" in first
    assert "stand_in_upstream.Worker.stop" in second
