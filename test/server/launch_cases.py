"""Command lines that ``launch_probe.py`` takes up to where a server would start."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def outcomes_of(cases: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """``status`` and ``output`` of every case, all in one process that imports SGLang once."""
    probe = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("launch_probe.py"))],
        input=json.dumps(list(cases.values())),
        stdout=subprocess.PIPE,
        text=True,
        timeout=120 + 8 * len(cases),
        check=True,
    )
    return dict(zip(cases, json.loads(probe.stdout), strict=True))


def assert_refused(output: str, reason: str) -> None:
    """The output ends with the reason, which is the only one, and there is no traceback."""
    assert "Traceback (most recent call last)" not in output, output
    head, _, told = output.rstrip().rpartition("\n  - ")
    told = told if head else output.rstrip().splitlines()[-1]
    assert reason in told, output
    assert "\n  - " not in head, output
