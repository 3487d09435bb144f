"""Decodes with ``sglang.Engine``, one model after another, without importing SGLang each time.

A process for itself (``python family_engines.py FOLDER``): it reads ``jobs.json`` in the folder, a
list of ``{"name", "prompts", "length", "logprobs", "settings", "timeout_s"}``, and writes
``NAME.json`` for each, the answers of an engine with these settings. Every engine and its processes
are forked from this one, which has SGLang's modules; they are otherwise as SGLang starts them.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any


def decode(job: dict[str, Any], folder: Path) -> None:
    """One engine's life."""
    import sglang

    os.setsid()  # SGLang ends the group of an engine that fails
    log = os.open(folder / f"{job['name']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    engine = sglang.Engine(**job["settings"])
    params = {"temperature": 0, "max_new_tokens": job["length"], "ignore_eos": True}
    answers = engine.generate(
        input_ids=job["prompts"], sampling_params=params, return_logprob=job["logprobs"]
    )
    (folder / f"{job['name']}.json").write_text(json.dumps(answers, default=str))
    engine.shutdown()


def main(folder: Path) -> None:
    importlib.import_module("sglang.srt.managers.scheduler")  # what every engine's processes need
    from sglang.srt.models.registry import ModelRegistry

    ModelRegistry.get_supported_archs()
    multiprocessing.set_start_method("fork")
    multiprocessing.set_start_method = lambda *_, **__: None  # type: ignore[assignment]
    for job in json.loads((folder / "jobs.json").read_text()):
        child = multiprocessing.Process(target=decode, args=(job, folder))
        child.start()
        child.join(job["timeout_s"])
        if child.is_alive():
            os.killpg(child.pid, signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
