"""The installed package, its metadata and the locked environment agree with one another."""

from __future__ import annotations

import ast
import importlib.metadata as metadata
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import sglang_ddtree

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
PACKAGE = ROOT / "python" / "sglang_ddtree"
GROUPS = {
    "sglang.srt.plugins": "sglang_ddtree.engine.plugin:register",
    "sglang.srt.platforms": "sglang_ddtree.platform:activate",
}


def read_lock(kind: str) -> dict[str, str]:
    """Name to version; fails on any line that is not an exact pin."""
    pins: dict[str, str] = {}
    for line in (REQUIREMENTS / f"{kind}.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        pin = re.fullmatch(r"([a-z0-9-]+)==([A-Za-z0-9.]+)", line)
        assert pin, f"{kind}.txt: not an exact pin: {line!r}"
        assert pin[1] not in pins, f"{kind}.txt: {pin[1]} is pinned twice"
        pins[pin[1]] = pin[2]
    return pins


def read_roots(name: str) -> set[str]:
    roots: set[str] = set()
    for line in (REQUIREMENTS / name).read_text().splitlines():
        if line.startswith("-r "):
            roots |= read_roots(line.removeprefix("-r "))
        elif line and not line.startswith("#"):
            roots.add(canonicalize_name(Requirement(line).name))
    return roots


def unmet(distribution: str, extras: set[str], pins: dict[str, str]) -> list[str]:
    """What an installed distribution requires by its own metadata and the pins do not give."""
    found = []
    for line in metadata.requires(distribution) or ():
        requirement = Requirement(line)
        environments = [default_environment() | {"extra": extra} for extra in {"", *extras}]
        if requirement.marker and not any(map(requirement.marker.evaluate, environments)):
            continue
        pinned = pins.get(canonicalize_name(requirement.name))
        if pinned is None or not requirement.specifier.contains(pinned, prereleases=True):
            found.append(f"{distribution} requires {requirement}, pinned: {pinned}")
    return found


@pytest.mark.parametrize("kind", ["cpu", "gpu", "sglang"])
def test_lock_pins_every_line_exactly(kind: str) -> None:
    assert read_lock(kind)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_lock_covers_its_roots(kind: str) -> None:
    pins = read_lock(kind) | read_lock("sglang")
    assert read_roots(f"{kind}.in") <= pins.keys()


def test_locks_agree_where_they_overlap() -> None:
    cpu, gpu = read_lock("cpu"), read_lock("gpu")
    assert {name: gpu[name] for name in cpu.keys() & gpu.keys()} == {
        name: cpu[name] for name in cpu.keys() & gpu.keys()
    }


def test_cpu_lock_is_closed_under_requirements() -> None:
    pins = read_lock("cpu")
    wanted: dict[str, set[str]] = {name: set() for name in pins}
    for name in pins:
        for line in metadata.requires(name) or ():
            requirement = Requirement(line)
            if not requirement.marker or requirement.marker.evaluate({"extra": ""}):
                wanted.setdefault(canonicalize_name(requirement.name), set()).update(
                    requirement.extras
                )
    problems = [line for name in pins for line in unmet(name, wanted[name], pins)]
    assert problems == []


def test_gpu_lock_meets_what_sglang_requires() -> None:
    assert unmet("sglang", set(), read_lock("gpu")) == []


def test_cpu_lock_has_no_version_that_sglang_excludes() -> None:
    absent = re.compile(r"pinned: None$")
    assert [
        line for line in unmet("sglang", set(), read_lock("cpu")) if not absent.search(line)
    ] == []


def test_environment_is_the_locked_one() -> None:
    kind = (Path(sys.prefix) / "complete").read_text().strip()
    pins = read_lock(kind) | read_lock("sglang")
    installed = {
        canonicalize_name(found.metadata["Name"]): found.version
        for found in metadata.distributions(path=[p for p in sys.path if p.startswith(sys.prefix)])
    }
    installed.pop("pip")
    assert installed == pins


def test_sglang_extra_is_the_locked_version() -> None:
    extras = [Requirement(line) for line in metadata.requires("sglang-ddtree") or ()]
    pinned = [str(r.specifier) for r in extras if r.name == "sglang"]
    assert pinned == [f"=={read_lock('sglang')['sglang']}"]


def test_core_install_does_not_pull_sglang() -> None:
    requirements = [Requirement(line) for line in metadata.requires("sglang-ddtree") or ()]
    core = [r.name for r in requirements if not r.marker or r.marker.evaluate({"extra": ""})]
    assert core == ["numpy", "safetensors", "torch"]


def test_version_is_the_packages_own() -> None:
    assert metadata.version("sglang-ddtree") == sglang_ddtree.__version__


def test_package_under_test_is_this_checkouts() -> None:
    assert Path(sglang_ddtree.__file__) == PACKAGE / "__init__.py"


def test_entry_points_reach_spawned_processes() -> None:
    code = (
        "import importlib.metadata as m, json, sys; print(json.dumps("
        "{g: [e.value for e in m.entry_points(group=g, name='ddtree')] for g in sys.argv[1:]}))"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, *GROUPS], check=True, capture_output=True, text=True
    )
    assert json.loads(child.stdout) == {group: [value] for group, value in GROUPS.items()}


@pytest.mark.parametrize("target", [*GROUPS.values(), "sglang_ddtree.cli:main"])
def test_entry_point_names_a_function(target: str) -> None:
    """Read from the source: loading the plugin here would patch SGLang for the tests after it."""
    module, function = target.split(":")
    path = ROOT / "python" / module.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(source.read_text(encoding="utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert function in names | imported


def test_entry_points_use_sglangs_group_names() -> None:
    plugins = Path(metadata.distribution("sglang").locate_file("sglang/srt/plugins/__init__.py"))
    source = plugins.read_text(encoding="utf-8")
    assert set(re.findall(r'^\w+_PLUGINS_GROUP = "(.+)"$', source, re.M)) == set(GROUPS)


def test_wheel_holds_every_module_and_no_weights(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for folder in ("python", "csrc"):
        shutil.copytree(
            ROOT / folder,
            source / folder,
            ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
        )
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [*pip, "--wheel-dir", str(tmp_path), str(source)],
        check=True,
        capture_output=True,
        env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    (wheel,) = tmp_path.glob("sglang_ddtree-*.whl")
    assert wheel.stat().st_size < 2_000_000
    with zipfile.ZipFile(wheel) as archive:
        licences = {name for name in archive.namelist() if ".dist-info/licenses/" in name}
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        path.relative_to(source / "python").as_posix()
        for path in (source / "python" / "sglang_ddtree").rglob("*")
        if path.is_file()
    }
    kernels = [*source.glob("csrc/triton/*.py"), *source.glob("csrc/*.cu")]
    kernels += source.glob("csrc/include/ddtree/*.cuh")
    expected |= {f"sglang_ddtree/_kernels/{path.relative_to(source)}" for path in kernels}
    assert packed == expected
    assert {Path(name).name for name in licences} == {"LICENSE", "NOTICE"}
