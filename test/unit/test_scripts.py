"""scripts/env.sh and scripts/run.sh: what they build, when, and what they refuse."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unit.checkout import Checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_first_run_builds_and_later_runs_start_no_python(checkout: Checkout) -> None:
    first = checkout.run("env.sh")
    assert first.returncode == 0, first.stderr
    assert "preparing the cpu environment" in first.stderr
    assert len(checkout.calls("-m pip install")) == 1
    checkout.log.unlink()
    second = checkout.run("env.sh")
    assert second.stdout == first.stdout == f"{next(checkout.home.glob('env-*[!k]'))}\n"
    assert second.stderr == ""
    assert not checkout.log.exists()


def test_pip_gets_both_locks_and_resolves_nothing_itself(checkout: Checkout) -> None:
    assert checkout.run("env.sh").returncode == 0
    (call,) = checkout.calls("-m pip install")
    assert "--no-deps" in call.split()
    assert f"--requirement={checkout.root}/requirements/cpu.txt" in call
    assert f"--requirement={checkout.root}/requirements/sglang.txt" in call


def test_changed_requirements_get_an_environment_of_their_own(checkout: Checkout) -> None:
    before = checkout.run("env.sh").stdout
    with (checkout.root / "requirements" / "cpu.txt").open("a") as lock:
        lock.write("another==1.0\n")
    after = checkout.run("env.sh").stdout
    assert before != after
    assert Path(before.strip()).is_dir()
    assert Path(after.strip()).is_dir()


def test_half_built_environment_is_built_anew(checkout: Checkout) -> None:
    broken = checkout.run("env.sh", FAKE_PIP_FAILS="1")
    assert broken.returncode != 0
    assert broken.stdout == ""
    (left,) = (path for path in checkout.home.iterdir() if path.is_dir())
    (left / "leftover").touch()
    assert checkout.run("env.sh").stdout == f"{left}\n"
    assert not (left / "leftover").exists()
    assert not (left / "tmp").exists()


def test_environment_whose_python_went_away_is_built_anew(checkout: Checkout) -> None:
    env = Path(checkout.run("env.sh").stdout.strip())
    (env / "bin" / "python").unlink()
    assert checkout.run("env.sh").returncode == 0
    assert (env / "bin" / "python").exists()


def test_scripts_started_together_build_once(checkout: Checkout, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    running = [checkout.start("env.sh", FAKE_PIP_WAITS=str(gate)) for _ in range(3)]
    gate.write_text("go\n")  # blocks until one of them is inside pip
    results = [process.communicate(timeout=60) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], results
    assert len({out for out, _ in results}) == 1
    assert len(checkout.calls("-m pip install")) == 1


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"FAKE_WRONG_VERSION": "1"}, "python3.11: not Python 3.11"),
        ({"FAKE_NO_VENV": "1"}, "python3.11: no venv module"),
        ({"SGLANG_DDTREE_PYTHON": "python9"}, "python9: not found"),
        ({"SGLANG_DDTREE_KIND": "tpu"}, "must be cpu or gpu"),
    ],
)
def test_what_is_missing_is_named(checkout: Checkout, environ: dict[str, str], reason: str) -> None:
    result = checkout.run("env.sh", **environ)
    assert result.returncode == 1
    assert reason in result.stderr
    assert checkout.calls("-m venv") == []


def test_too_little_disk_space_is_named_before_anything_is_made(checkout: Checkout) -> None:
    (checkout.bin / "df").unlink()
    checkout.add_tool("df", "#!/bin/bash\necho head; echo /dev/x 99999999 99 3145728 1% /\n")
    result = checkout.run("env.sh")
    assert result.returncode == 1
    assert "needs 10 GB of disk space" in result.stderr
    assert "has 3 GB" in result.stderr
    assert checkout.calls("-m venv") == []


def test_gpu_machine_gets_the_gpu_lock_unless_told_otherwise(checkout: Checkout) -> None:
    cpu = checkout.run("env.sh").stdout
    checkout.add_tool("nvidia-smi", "#!/bin/bash\necho 'GPU 0: NVIDIA (UUID: GPU-0)'\n")
    assert checkout.run("env.sh").stdout != cpu
    assert "requirements/gpu.txt" in checkout.calls("-m pip install")[-1]
    assert checkout.run("env.sh", SGLANG_DDTREE_KIND="cpu").stdout == cpu


def test_driver_without_a_gpu_gets_the_cpu_lock(checkout: Checkout) -> None:
    checkout.add_tool("nvidia-smi", "#!/bin/bash\necho 'No devices found'; exit 6\n")
    assert checkout.run("env.sh").returncode == 0
    assert "requirements/cpu.txt" in checkout.calls("-m pip install")[-1]


def test_metadata_follows_setup_py(checkout: Checkout) -> None:
    checkout.run("env.sh")
    checkout.run("env.sh")
    assert len(checkout.calls("setup.py")) == 1
    sources = checkout.root / "python" / "sglang_ddtree.egg-info" / "SOURCES.txt"
    os.utime(sources, (0, 0))
    checkout.run("env.sh")
    assert len(checkout.calls("setup.py")) == 2


def test_run_keeps_arguments_folder_and_exit_status(checkout: Checkout) -> None:
    checkout.add_tool("probe", '#!/bin/bash\nprintf "%s|" "$PWD" "$PYTHONPATH" "$@"; exit 7\n')
    result = checkout.run("run.sh", "probe", "a b", "", "*", PYTHONPATH="/mine")
    assert result.returncode == 7
    assert result.stdout == f"{os.getcwd()}|{checkout.root}/python:/mine|a b||*|"


def test_run_without_a_command_says_how(checkout: Checkout) -> None:
    result = checkout.run("run.sh")
    assert result.returncode == 2
    assert "usage: scripts/run.sh" in result.stderr
