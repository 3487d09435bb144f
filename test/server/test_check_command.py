"""``sglang-ddtree check`` on this installation, and on one that does not fit."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

from sglang_ddtree.engine.upstream.seams import SGLANG_VERSION, TOOL_SEAMS, relevant

pytestmark = pytest.mark.no_server

ROWS = relevant() + TOOL_SEAMS

# An SGLang that lost a method, renamed a parameter and moved on by a release.
OTHER_SGLANG = """
import importlib.metadata
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.speculative import dflash_utils
from sglang_ddtree.cli import main

version = importlib.metadata.version
importlib.metadata.version = lambda name: "0.5.99" if name == "sglang" else version(name)
del MHATokenToKVPool.move_kv_cache
dflash_utils.validate_dflash_request = lambda request, enable_overlap: None
raise SystemExit(main(["check"]))
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_fits_here() -> None:
    result = run("-m", "sglang_ddtree.cli", "check", "--all")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "DDTREE can serve here." in result.stdout
    assert f"{len(ROWS)} of {len(ROWS)} fit" in result.stdout
    versions = dict(line.split()[:2] for line in result.stdout.splitlines()[1:8])
    assert versions["sglang"] == SGLANG_VERSION
    assert versions["torch"] == importlib.metadata.version("torch")
    for seam in ROWS:
        assert seam.path in result.stdout


def test_every_reason_is_listed() -> None:
    result = run("-c", OTHER_SGLANG)
    assert result.returncode == 1, result.stdout + result.stderr
    reasons = result.stdout[result.stdout.index("DDTREE can't serve here:") :].splitlines()[1:]
    assert len(reasons) == 3, reasons
    assert f"sglang 0.5.99 is installed, this release is for {SGLANG_VERSION}" in reasons[0]
    assert "validate_dflash_request lacks parameters ['req']" in result.stdout
    assert "MHATokenToKVPool.move_kv_cache is gone" in result.stdout
    assert f"seams: {len(ROWS) - 2} of {len(ROWS)} fit" in result.stdout
