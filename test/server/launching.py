"""``sglang-ddtree launch`` as a server under test, and what the operating system says about it."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from common.pairs import Pair
from common.server import START_TIMEOUT_S, Server, ServerError
from safetensors.torch import load_file, save_file

from server.configurations import COMMON, STRICT

SERVER_FLAGS = ("--dtype", "float32", "--max-total-tokens", "16384", "--mem-fraction-static", "0.2")


class Launched(Server):
    """A launched service; `url` is that of the router where there is one.

    Args:
        model: folder of the target. drafter: that of the drafter.
        options: of ``launch``. flags: of every server. env: variables of all processes.
    """

    def __init__(
        self,
        model: Path,
        drafter: Path,
        options: Sequence[str],
        flags: Sequence[str] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        super().__init__(model, (), {**STRICT, **(env or {})})
        self.command = [sys.executable, "-m", "sglang_ddtree.cli", "launch", "--device", "cpu"]
        self.command += ["--model", str(model), "--draft-model-path", str(drafter)]
        self.command += ["--port", str(self.port), *options, "--", *SERVER_FLAGS, *COMMON, *flags]

    def wait(self, timeout_s: float) -> int:
        """The launcher's exit status."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def messages(self) -> list[str]:
        """What the launcher itself has said."""
        start = "sglang-ddtree launch: "
        return [line for line in self.log().splitlines() if line.startswith(start)]

    def family(self) -> list[psutil.Process]:
        """Every process below the launcher."""
        return psutil.Process(self.pid).children(recursive=True)

    def ranks(self) -> list[tuple[int, psutil.Process]]:
        """Replica and process of each rank that the launcher has reported."""
        found = re.findall(r"launch: replica (\d+) rank \d+: process (\d+), cores", self.log())
        return [(int(replica), psutil.Process(int(pid))) for replica, pid in found]

    def answers_of(self, replica: int) -> int:
        """How many ``/generate`` requests a replica has answered."""
        return len(re.findall(rf"\[replica {replica}\].*POST /generate HTTP/1.1\" 200", self.log()))

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not any("ready on" in message for message in self.messages()):
            if not self.is_alive() or time.monotonic() > deadline:
                raise ServerError(f"launch gave no service:\n{self.log()[-6000:]}")
            time.sleep(0.25)  # between polls of the condition above


def threads_by_cores(process: psutil.Process) -> dict[str, int]:
    """Allowed cores, as /proc writes them, to the number of threads of a process that have them."""
    found: dict[str, int] = {}
    for status in Path(f"/proc/{process.pid}/task").glob("*/status"):
        (cores,) = re.findall(r"Cpus_allowed_list:\s*(\S+)", status.read_text())
        found[cores] = found.get(cores, 0) + 1
    return found


def memory_policy(process: psutil.Process) -> str:
    """NUMA policy of a process's memory, such as ``prefer:0``."""
    return Path(f"/proc/{process.pid}/numa_maps").read_text().split(maxsplit=2)[1]


def still_running(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def with_more_heads(pair: Pair, folder: Path, heads: int) -> tuple[Path, Path]:
    """The pair with silent query heads added, so that more ranks divide them: the same function.

    A new head's queries are zero and its output is multiplied by zero. Returns target and drafter.
    """
    for source in (pair.target, pair.drafter):
        copy = folder / source.name
        shutil.copytree(source, copy)
        config = json.loads((copy / "config.json").read_text())
        kv_heads, dim = config["num_key_value_heads"], config["head_dim"]
        have, want = config["num_attention_heads"] // kv_heads, heads // kv_heads
        config["num_attention_heads"] = heads
        (copy / "config.json").write_text(json.dumps(config))
        weights = load_file(copy / "model.safetensors")
        for name, weight in weights.items():
            # Query heads come in groups, one for each KV head: a group is filled up at its end.
            if name.endswith("q_proj.weight"):
                groups = weight.view(kv_heads, have * dim, -1)
                wide = groups.new_zeros(kv_heads, want * dim, groups.shape[-1])
                wide[:, : have * dim] = groups
                weights[name] = wide.flatten(0, 1)
            elif name.endswith("o_proj.weight"):
                groups = weight.view(-1, kv_heads, have * dim)
                wide = groups.new_zeros(groups.shape[0], kv_heads, want * dim)
                wide[..., : have * dim] = groups
                weights[name] = wide.flatten(1)
        save_file(weights, copy / "model.safetensors", {"format": "pt"})
    return folder / pair.target.name, folder / pair.drafter.name
