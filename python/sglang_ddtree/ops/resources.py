"""What the compiled CUDA kernels take of a processor, read from the compilers' own reports."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path

from sglang_ddtree.ops.build import (
    ARCHITECTURES,
    UNITS,
    CompileError,
    compile_emulation,
    compile_report,
)

SHARED_LIMIT = 101_376  # bytes a block may have on sm_120 (cudaDevAttrMaxSharedMemoryPerBlockOptin)
REGISTER_LIMIT = 255
# Instructions by the prefix of their SASS name.
_COUNTED = {
    "mma": ("HMMA", "QMMA"),
    "ldmatrix": ("LDSM",),
    "cp.async": ("LDGSTS",),
    "local": ("LDL", "STL"),
}


@dataclass(frozen=True)
class Resources:
    """One kernel on one architecture.

    shared_bytes: dynamic and static. spill_bytes: stores and loads. stack_bytes: local memory.
    mma, ldmatrix, copies, local: instructions of the kind in its SASS.
    """

    kernel: str
    architecture: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int
    mma: int
    ldmatrix: int
    copies: int
    local: int

    def problems(self) -> list[str]:
        """The limits that this kernel exceeds, and the instructions that it claims and lacks."""
        found = {
            f"{self.shared_bytes} B of shared memory, {SHARED_LIMIT} at most": (
                self.shared_bytes > SHARED_LIMIT
            ),
            f"spills {self.spill_bytes} B": self.spill_bytes > 0,
            f"{self.stack_bytes} B of stack": self.stack_bytes > 0,
            f"{self.local} accesses of local memory": self.local > 0,
            f"{self.registers} registers": self.registers > REGISTER_LIMIT,
            "no tensor-core instruction": self.kernel.startswith("mla") and self.mma == 0,
            "no ldmatrix": self.kernel.startswith("mla") and self.ldmatrix == 0,
            "no cp.async": self.kernel.startswith("mla") and self.copies == 0,
        }
        return [f"{self.kernel} on {self.architecture}: {x}" for x, bad in found.items() if bad]


def measure(workers: int = 2) -> list[Resources]:
    """Compiles every unit for every architecture, from the cache where it can.

    Raises CompileError where nvcc or cuobjdump is missing, or nvcc fails.
    """
    emulation = ctypes.CDLL(str(compile_emulation()))
    jobs = [(unit, architecture) for architecture in ARCHITECTURES for unit in UNITS]
    with ThreadPoolExecutor(workers) as pool:
        reports = list(pool.map(lambda job: compile_report(*job), jobs))
    found: list[Resources] = []
    for (_, architecture), (cubin, log) in zip(jobs, reports, strict=True):
        instructions = count_instructions(disassemble(cubin))
        for kernel, usage in parse_usage(log).items():
            counts = instructions[kernel]
            found.append(
                Resources(
                    kernel,
                    architecture,
                    registers=usage["registers"],
                    shared_bytes=usage["shared"] + emulation[f"ddtree_{kernel}_shared_bytes"](),
                    spill_bytes=usage["spill"],
                    stack_bytes=usage["stack"],
                    mma=counts["mma"],
                    ldmatrix=counts["ldmatrix"],
                    copies=counts["cp.async"],
                    local=counts["local"],
                )
            )
    return sorted(found, key=lambda x: (x.kernel, x.architecture))


def parse_usage(log: str) -> dict[str, dict[str, int]]:
    """Registers, static shared memory, spills and stack of each entry, from `ptxas -v`."""
    usage: dict[str, dict[str, int]] = {}
    for block in log.split("Compiling entry function ")[1:]:
        name = block.split("'")[1]
        stack, stores, loads = map(
            int,
            re.findall(
                r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", block
            )[0],
        )
        registers = re.findall(r"Used (\d+) registers", block)
        shared = re.findall(r"(\d+) bytes smem", block)
        usage[name] = {
            "registers": int(registers[0]),
            "shared": int(shared[0]) if shared else 0,
            "spill": stores + loads,
            "stack": stack,
        }
    return usage


def count_instructions(sass: str) -> dict[str, Counter[str]]:
    """How many instructions of the counted kinds each function of a disassembly has."""
    found: dict[str, Counter[str]] = {}
    for block in sass.split("Function : ")[1:]:
        counts: Counter[str] = Counter()
        for name in re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([A-Z0-9_]+)", block, re.M):
            for kind, names in _COUNTED.items():
                counts[kind] += name.startswith(names)
        found[block.split()[0]] = counts
    return found


def disassemble(cubin: Path) -> str:
    """SASS of a cubin. Raises CompileError where no cuobjdump is found: Triton brings one along."""
    tool = shutil.which("cuobjdump", path=f"{_triton_tools()}:/usr/local/cuda/bin")
    if tool is None:
        raise CompileError("no cuobjdump: it comes with the CUDA toolkit and with Triton")
    run = subprocess.run([tool, "-sass", str(cubin)], capture_output=True, text=True, check=True)
    return run.stdout


def _triton_tools() -> Path:
    import triton

    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def table(resources: list[Resources]) -> str:
    """Markdown."""
    names = {"architecture": "arch", "shared_bytes": "shared B", "spill_bytes": "spill B"}
    names |= {"stack_bytes": "stack B", "copies": "cp.async"}
    columns = [field.name for field in fields(Resources)]
    lines = [[names.get(column, column) for column in columns]]
    lines.append(["---", "---", *["--:"] * (len(columns) - 2)])
    for x in resources:
        values = [getattr(x, column) for column in columns]
        lines.append([f"{v:,}" if isinstance(v, int) else v for v in values])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
