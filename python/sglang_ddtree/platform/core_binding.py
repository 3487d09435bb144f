"""Cores and memory of a rank on the CPU platform.

``SGLANG_CPU_OMP_THREADS_BIND`` gives every rank its cores, such as ``0-3|4-7``. SGLang reads it for
any CPU, but binds through kernels that need AMX or ARM
(srt/distributed/bootstrap.py: _init_cpu_threads_env@0.5.23).
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import platform
from typing import Any

from sglang_ddtree.cluster.machine.cores import format_cores, parse_cores
from sglang_ddtree.cluster.machine.cpu_machine import node_of, usable_nodes

TARGET = "sglang.srt.utils.numa_utils.init_threads_binding"

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_MPOL_PREFERRED = 1

logger = logging.getLogger(__name__)


def bind_rank(cores: str, *args: Any, **kwargs: Any) -> str:
    """Run this process on its rank's cores, with memory of their NUMA node; runs after SGLang has
    looked the cores up, and before threads of the model exist.

    Raises ValueError for cores that this process may not use.
    """
    if os.environ.get("SGLANG_CPU_OMP_THREADS_BIND", "all") == "all":
        return cores
    wanted = parse_cores(cores)
    try:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), wanted)
    except OSError as error:
        allowed = format_cores(tuple(os.sched_getaffinity(0)))
        raise ValueError(
            f"SGLANG_CPU_OMP_THREADS_BIND asks for cores {cores}; this process may use {allowed}"
        ) from error
    node = node_of(wanted, usable_nodes(allowed=frozenset(range(os.cpu_count() or 1))))
    memory = "memory of any node" if node is None else _prefer_memory(node)
    logger.info("DDTREE: rank bound to cores %s, %s", cores, memory)
    return cores


def _prefer_memory(node: int) -> str:
    """Take new pages from a node as long as it has any; says what came of it."""
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return "memory of the node that touches it first"
    libc = ctypes.CDLL(None, use_errno=True)
    mask = ctypes.c_ulong(1 << node)
    if libc.syscall(number, _MPOL_PREFERRED, ctypes.byref(mask), 8 * ctypes.sizeof(mask)) == 0:
        return f"memory of node {node} preferred"
    # Containers without SYS_NICE forbid it; the kernel's default is the node that touches first.
    return f"no memory policy ({errno.errorcode[ctypes.get_errno()]})"


def register() -> None:
    """Queue the hook."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, bind_rank, HookType.AFTER)
