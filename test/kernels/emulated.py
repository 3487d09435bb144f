"""Calls of the emulated CUDA kernels, under every schedule of threads and copies."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import NamedTuple


class Schedule(NamedTuple):
    """Order in which fibers run (0 ascending, 1 descending, 2 shuffled), and when copies land."""

    order: int
    eager_copies: bool
    seed: int = 0


SCHEDULES = [Schedule(0, False), Schedule(1, True), Schedule(2, False, 1), Schedule(2, True, 2)]


class Emulation:
    """A library of `compile_emulation`."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))

    def call(self, name: str, params: ctypes.Structure, schedule: Schedule) -> None:
        function = getattr(self._library, f"ddtree_{name}")
        function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_uint]
        function.restype = None
        function(
            ctypes.addressof(params), schedule.order, int(schedule.eager_copies), schedule.seed
        )
