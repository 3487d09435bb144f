"""The seam table itself: that it notices what it is for."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from sglang_ddtree.engine import seams
from sglang_ddtree.engine.seams import Seam


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that stands in for SGLang."""
    module = ModuleType("stand_in_upstream")

    class Worker:
        limit = 3

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
    paths = [seam.path for seam in seams.SEAMS]
    assert len(paths) == len(set(paths))
    for seam in seams.SEAMS:
        assert seam.path.startswith("sglang.")
        assert seam.why


def test_another_version_comes_first(monkeypatch: pytest.MonkeyPatch, upstream: ModuleType) -> None:
    """All reasons are listed, the one that explains the others at the top."""
    monkeypatch.setattr(seams, "SEAMS", (Seam("stand_in_upstream.Worker.stop", (), "stop"),))
    monkeypatch.setattr(seams, "installed_version", lambda: "0.5.99")
    first, second = seams.problems()
    assert "sglang 0.5.99 is installed" in first
    assert f"pip install sglang=={seams.SGLANG_VERSION}" in first
    assert "stand_in_upstream.Worker.stop" in second
