"""Every Triton kernel in Triton's interpreter, in processes of their own (see interpreted/)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

INTERPRETED = Path(__file__).parent / "interpreted"
ROOT = INTERPRETED.parents[2]


@pytest.mark.parametrize("module", sorted(path.name for path in INTERPRETED.glob("test_*.py")))
def test_in_the_interpreter(module: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", INTERPRETED / module],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
    assert "skipped" not in run.stdout
