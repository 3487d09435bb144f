"""Reads the topology of this machine from NVML and sysfs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sglang_ddtree.cluster.machine.cores import parse_cores
from sglang_ddtree.cluster.machine.topology import Gpu, Link, LinkKind, Topology

# nvmlGpuTopologyLevel_t of the NVML API reference, "Device Queries".
_LEVELS = {
    0: LinkKind.PIX,  # INTERNAL: two GPUs of one board, which share its switch
    10: LinkKind.PIX,
    20: LinkKind.PXB,
    30: LinkKind.PHB,
    40: LinkKind.NODE,
    50: LinkKind.SYS,
}


class NvmlUnavailable(RuntimeError):
    """NVML cannot be used here; the message says why and what to do."""


@dataclass(frozen=True)
class NvmlGpu:
    """What NVML says about one GPU; `pci_address` as NVML writes it, with an 8-digit domain."""

    index: int
    name: str
    memory_bytes: int
    pci_address: str


class Nvml(Protocol):
    """The queries that `read_machine` makes; pairs are given by GPU index."""

    def driver(self) -> str: ...

    def gpus(self) -> list[NvmlGpu]: ...

    def topology_level(self, a: int, b: int) -> int:
        """nvmlGpuTopologyLevel_t of a pair."""

    def nvlinks(self, a: int, b: int) -> int:
        """Active NVLinks between a pair, through switches too."""

    def peer_access(self, a: int, b: int) -> bool:
        """Whether reads and writes between a pair are possible."""


class PyNvml:
    """`Nvml` through the package ``nvidia-ml-py``. Raises NvmlUnavailable."""

    def __init__(self) -> None:
        try:
            self._nvml: Any = importlib.import_module("pynvml")
        except ImportError as error:
            raise NvmlUnavailable(
                "reading this machine's GPUs needs the package nvidia-ml-py; or save the output "
                "of `nvidia-smi topo -m` to a file and plan from that"
            ) from error
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise NvmlUnavailable(f"NVML does not start: {error}") from error
        count = self._nvml.nvmlDeviceGetCount()
        self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]

    def driver(self) -> str:
        return _text(self._nvml.nvmlSystemGetDriverVersion())

    def gpus(self) -> list[NvmlGpu]:
        nvml = self._nvml
        return [
            NvmlGpu(
                index=i,
                name=_text(nvml.nvmlDeviceGetName(handle)),
                memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
                pci_address=_text(nvml.nvmlDeviceGetPciInfo(handle).busId),
            )
            for i, handle in enumerate(self._handles)
        ]

    def topology_level(self, a: int, b: int) -> int:
        return int(
            self._nvml.nvmlDeviceGetTopologyCommonAncestor(self._handles[a], self._handles[b])
        )

    def nvlinks(self, a: int, b: int) -> int:
        nvml = self._nvml
        peer = _text(nvml.nvmlDeviceGetPciInfo(self._handles[b]).busId)
        count = 0
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            try:
                if not nvml.nvmlDeviceGetNvLinkState(self._handles[a], link):
                    continue
                kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(self._handles[a], link)
                remote = _text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(self._handles[a], link).busId)
            except nvml.NVMLError:
                continue  # a GPU answers so for each link that it does not have
            count += kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH or remote == peer
        return count

    def peer_access(self, a: int, b: int) -> bool:
        nvml = self._nvml
        queries = (nvml.NVML_P2P_CAPS_INDEX_READ, nvml.NVML_P2P_CAPS_INDEX_WRITE)
        return all(
            nvml.nvmlDeviceGetP2PStatus(self._handles[a], self._handles[b], query)
            == nvml.NVML_P2P_STATUS_OK
            for query in queries
        )


def read_machine(nvml: Nvml | None = None, sysfs: Path = Path("/sys")) -> Topology:
    """The topology of this machine.

    nvml: the queries, `PyNvml` by default. sysfs: where the sys filesystem is mounted.
    Raises NvmlUnavailable without NVML or GPUs, ValueError for a file or a level that cannot be
    understood.
    """
    nvml = nvml or PyNvml()
    found = nvml.gpus()
    if not found:
        raise NvmlUnavailable("NVML reports no GPU")
    pairs = [(a.index, b.index) for i, a in enumerate(found) for b in found[i + 1 :]]
    return Topology(
        gpus=tuple(_read_gpu(gpu, sysfs) for gpu in found),
        links={pair: _read_link(nvml, *pair) for pair in pairs},
        driver=nvml.driver(),
        p2p={pair: nvml.peer_access(*pair) and nvml.peer_access(*pair[::-1]) for pair in pairs},
        source="NVML and sysfs",
    )


def _read_link(nvml: Nvml, a: int, b: int) -> Link:
    lanes = nvml.nvlinks(a, b)
    if lanes:
        return Link(LinkKind.NVLINK, lanes)
    level = nvml.topology_level(a, b)
    if level not in _LEVELS:
        raise ValueError(f"NVML gives GPU{a}-GPU{b} the unknown topology level {level}")
    return Link(_LEVELS[level])


def _read_gpu(gpu: NvmlGpu, sysfs: Path) -> Gpu:
    address = sysfs_address(gpu.pci_address)
    device = sysfs / "bus/pci/devices" / address
    node = _read_file(device / "numa_node")
    cores = _read_file(device / "local_cpulist")
    # The kernel reports -1 where firmware gives the device no node.
    nodes = () if node in (None, "-1") else parse_cores(str(node))
    return Gpu(
        index=gpu.index,
        numa_nodes=nodes,
        cores=parse_cores(cores) if cores else (),
        name=gpu.name,
        memory_bytes=gpu.memory_bytes,
        pci_address=address,
        switches=_switches(device),
    )


def sysfs_address(address: str) -> str:
    """NVML's ``00000000:C1:00.0`` as sysfs writes it, ``0000:c1:00.0``."""
    domain, rest = address.lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"


def _switches(device: Path) -> tuple[str, ...]:
    """Upstream ports above a device: its path is root port, then pairs of up- and downstream."""
    if not device.exists():
        return ()
    path = device.resolve().parts
    roots = [i for i, part in enumerate(path) if part.startswith("pci")]
    bridges = path[roots[-1] + 1 : -1] if roots else ()
    return tuple(bridges[1::2]) if len(bridges) > 2 else ()


def _read_file(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
