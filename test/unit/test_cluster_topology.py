"""Topology texts, NVML and sysfs become the machine that they describe, or an error with a name."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_ddtree.cluster.machine.cores import format_cores, parse_cores
from sglang_ddtree.cluster.machine.discover import (
    NvmlGpu,
    NvmlUnavailable,
    read_machine,
    sysfs_address,
)
from sglang_ddtree.cluster.machine.topology import Link, LinkKind, Topology
from sglang_ddtree.cluster.machine.topology_text import TopologyTextError, parse_topology
from unit.topology_files import NAMES, machines, read

HALVES = ((0, 1, 2, 3), (4, 5, 6, 7))
ALL_EIGHT = (tuple(range(8)),)
PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))

# Text: what the domains rest on, the domains, GPUs below one switch, link of GPU 0 to the last.
MACHINES = {
    "all_sys_with_numa": ("numa", HALVES, (), "SYS"),
    "four_nodes_of_two": ("numa", PAIRS, (), "SYS"),
    "four_on_one_socket": ("numa", ((0, 1, 2, 3),), (), "NODE"),
    "interleaved": ("numa", ((0, 2, 4, 6), (1, 3, 5, 7)), (), "SYS"),
    "nics_and_legend": ("numa", HALVES, PAIRS, "SYS"),
    "no_affinity_columns": ("links", HALVES, (), "SYS"),
    "nvswitch": ("numa", HALVES, (), "NV18"),
    "old_driver_devices_as_columns": ("cores", HALVES, PAIRS, "SYS"),
    "one_gpu_empty_cells": ("links", ((0,),), (), "X"),
    "one_socket_switches": ("numa", ALL_EIGHT, PAIRS, "NODE"),
    "sixteen_two_sockets": (
        "numa",
        (tuple(range(8)), tuple(range(8, 16))),
        ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)),
        "SYS",
    ),
    "two_sockets_direct": ("numa", HALVES, (), "SYS"),
    "two_sockets_switches_ansi": ("numa", HALVES, PAIRS, "SYS"),
    "uneven_five_and_three": ("numa", ((0, 1, 2, 3, 4), (5, 6, 7)), (), "SYS"),
    "vm_all_sys_unknown": ("links", ((0,), (1,), (2,), (3,)), (), "SYS"),
    "vm_phb_no_affinity": ("links", ((0, 1, 2, 3),), (), "PHB"),
}


def test_every_text_has_an_expectation() -> None:
    assert set(NAMES) == set(MACHINES)


@pytest.mark.parametrize("name", MACHINES)
def test_text_becomes_the_machine(name: str) -> None:
    basis, domains, switches, last = MACHINES[name]
    topology = read(name)
    assert topology.domain_basis == basis
    assert tuple(domain.gpus for domain in topology.domains) == domains
    assert topology.switch_groups == switches
    assert str(topology.link(0, topology.indices[-1])) == last
    assert topology.indices == tuple(range(len(topology.gpus)))


def test_affinity_and_network_cards_are_read() -> None:
    topology = read("nics_and_legend")
    assert format_cores(topology.gpu(5).cores) == "56-111,168-223"
    assert topology.gpu(5).numa_nodes == (1,)
    assert topology.gpu(5).memory_node is None
    assert [(nic.name, nic.device) for nic in topology.nics] == [
        (f"NIC{i}", f"mlx5_{i}") for i in range(4)
    ]
    assert topology.nic_links[5, "NIC3"] == Link(LinkKind.NODE)
    assert [nic.device for nic in read("old_driver_devices_as_columns").nics] == [
        "mlx5_0",
        "mlx5_1",
    ]


def test_tabs_tell_which_affinity_is_missing() -> None:
    text = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t{}\n"
    cores_alone = parse_topology(text.format("0-7\t\t\tN/A")).gpu(0)
    assert (cores_alone.cores, cores_alone.numa_nodes) == (tuple(range(8)), ())
    node_alone = parse_topology(text.format("\t3\t\t5")).gpu(0)
    assert (node_alone.cores, node_alone.numa_nodes) == ((), (3,))
    assert node_alone.memory_node == 5


@pytest.mark.parametrize("name", NAMES)
def test_spaces_colour_and_line_ends_change_nothing(name: str) -> None:
    topology = read(name)
    path = Path(__file__).parent / "data" / "topology" / f"{name}.txt"
    lines = path.read_text().splitlines()
    # The one text in which tabs matter leaves its cells empty; nothing but N/A is in its row.
    spaces = "\n".join(line.expandtabs(8) for line in lines)
    coloured = "\r\n".join(f"\x1b[1;32m{line}\x1b[0m" for line in lines)
    for variant in (spaces, coloured):
        assert parse_topology(variant, topology.source) == topology


def test_single_pair_of_odd_indices() -> None:
    text = "$ nvidia-smi topo -m\n GPU3 GPU7 CPU Affinity\nGPU3 X NV2 0-3\nGPU7 NV2 X 0-3\n"
    topology = parse_topology(text)
    assert topology.indices == (3, 7)
    assert topology.link(7, 3) == Link(LinkKind.NVLINK, 2)


GOOD = """\
     GPU0 GPU1 NIC0 CPU Affinity NUMA Affinity
GPU0  X   PHB  SYS  0-15         0
GPU1 PHB   X   SYS  0-15         0
NIC0 SYS  SYS   X

Legend:

  X = the device
  PHB = a host bridge

NIC Legend:

  NIC0: mlx5_0
"""

# What to replace in the good text, by what, and the line and words of the error.
BROKEN = {
    "unknown link": ("GPU0  X   PHB", "GPU0  X   QPI", 2, "'QPI' between GPU0 and GPU1"),
    "NVLink without a number": ("GPU0  X   PHB", "GPU0  X   NV", 2, "'NV'"),
    "no NVLinks": ("GPU0  X   PHB", "GPU0  X   NV0", 2, "'NV0'"),
    "X off the diagonal": ("GPU0  X   PHB", "GPU0  X   X", 2, "'X' as the link"),
    "no X on the diagonal": ("GPU0  X ", "GPU0  SYS ", 2, "'SYS' as the link"),
    "asymmetry": ("GPU0  X   PHB", "GPU0  X   SYS", 2, "GPU0-GPU1 is SYS"),
    "row without a column": ("NIC0 SYS  SYS   X", "NIC1 SYS  SYS   X", 4, "'NIC1'"),
    "column without a row": ("NIC0 SYS  SYS   X\n", "", 1, "'NIC0' has no row"),
    "second row": ("NIC0 SYS  SYS   X", "GPU1 PHB X SYS 0-15 0", 4, "second row for 'GPU1'"),
    "second column": ("GPU0 GPU1 NIC0", "GPU0 GPU1 GPU1", 1, "second column for 'GPU1'"),
    "short row": ("NIC0 SYS  SYS   X", "NIC0 SYS  SYS", 4, "NIC0 has 2 links for 3"),
    "unknown column": ("NUMA Affinity", "NUMA Affinity Rack", 1, "'Rack'"),
    "token too many": ("SYS  0-15         0\nGPU1", "SYS  0-15 0 7\nGPU1", 2, "'7'"),
    "affinity that could be either": ("SYS  0-15         0\nGPU1", "SYS  0\nGPU1", 2, "'0' is"),
    "bad core list": ("SYS  0-15         0\nGPU1", "SYS  0-x 0\nGPU1", 2, "'0-x'"),
    "backward core list": ("SYS  0-15         0\nGPU1", "SYS  9-3 0\nGPU1", 2, "'9-3'"),
    "bad node": ("SYS  0-15         0\nGPU1", "SYS  0-15 left\nGPU1", 2, "'left'"),
    "text before the header": ("     GPU0", "Hello\n     GPU0", 1, "'Hello'"),
    "prose in the legend": ("  PHB =", "  and PHB is", 9, "'and PHB is a host bridge'"),
    "legend of no column": ("NIC0: mlx5_0", "NIC9: mlx5_0", 13, "'NIC9'"),
    "control character": ("GPU0  X   PHB", "GPU0  X   \x07PHB", 2, "control character"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_understood_is_named(case: str) -> None:
    old, new, line, words = BROKEN[case]
    parse_topology(GOOD)
    assert GOOD.count(old) == 1
    with pytest.raises(TopologyTextError, match=re.escape(words)) as raised:
        parse_topology(GOOD.replace(old, new))
    assert raised.value.line == line


@pytest.mark.parametrize("text", ["", "\n\n", "# a comment\n"])
def test_text_without_a_matrix(text: str) -> None:
    with pytest.raises(TopologyTextError, match="no header"):
        parse_topology(text)


TOKENS = [
    "X",
    "PHB",
    "SYS",
    "NV4",
    "GPU0",
    "GPU1",
    "NIC0",
    "N/A",
    "0-15",
    "0",
    "CPU",
    "\t",
    "\n",
    "",
]


@given(st.integers(0, 200), st.sampled_from(TOKENS))
@settings(max_examples=120, deadline=None)
def test_a_changed_token_is_read_or_named(position: int, token: str) -> None:
    """No other error, and never a machine with other GPUs than the text's columns."""
    parts = re.split(r"(\s+)", GOOD)
    parts[position % len(parts)] = token
    with contextlib.suppress(TopologyTextError):
        topology = parse_topology("".join(parts))
        assert topology.indices == (0, 1)
        assert topology.link(0, 1).kind in (LinkKind.PHB, LinkKind.SYS, LinkKind.NVLINK)


@given(st.sets(st.integers(0, 300), min_size=1))
@settings(max_examples=50, deadline=None)
def test_core_lists_round_trip(cores: set[int]) -> None:
    assert parse_cores(format_cores(tuple(cores))) == tuple(sorted(cores))


@given(machines())
@settings(max_examples=40, deadline=None)
def test_domains_partition_the_gpus_and_only_sys_leaves_them(topology: Topology) -> None:
    members = [gpu for domain in topology.domains for gpu in domain.gpus]
    assert sorted(members) == sorted(topology.indices)
    domain_of = topology.domain_of
    for (a, b), link in topology.links.items():
        assert (link.kind is LinkKind.SYS) == (domain_of[a] != domain_of[b])


def test_notes_name_what_is_odd() -> None:
    assert any("measure" in note for note in read("vm_all_sys_unknown").notes)
    assert read("two_sockets_direct").notes == ()
    text = GOOD.replace("GPU1 PHB   X   SYS  0-15         0", "GPU1 PHB   X   SYS  16-31 1")
    assert any("GPU0-GPU1 PHB" in note for note in parse_topology(text).notes)


def test_topologies_without_all_links_are_refused() -> None:
    gpus = read("two_sockets_direct").gpus
    with pytest.raises(ValueError, match="no link between GPU0 and GPU1"):
        Topology(gpus, {})
    with pytest.raises(ValueError, match="repeat"):
        Topology((gpus[0], gpus[0]), {})


@dataclass
class FakeNvml:
    """Two sockets with one two-level switch each: NVML's answers for four GPUs."""

    levels: dict[tuple[int, int], int]
    lanes: dict[tuple[int, int], int] = field(default_factory=dict)
    denied: set[tuple[int, int]] = field(default_factory=set)

    def driver(self) -> str:
        return "580.10"

    def gpus(self) -> list[NvmlGpu]:
        buses = ("11", "12", "C1", "C2")
        return [NvmlGpu(i, "Card", 96 << 30, f"00000000:{b}:00.0") for i, b in enumerate(buses)]

    def topology_level(self, a: int, b: int) -> int:
        return self.levels[a, b]

    def nvlinks(self, a: int, b: int) -> int:
        return self.lanes.get((a, b), 0)

    def peer_access(self, a: int, b: int) -> bool:
        return (a, b) not in self.denied


LEVELS = {(0, 1): 10, (2, 3): 20} | {(a, b): 50 for a in (0, 1) for b in (2, 3)}


def fake_sysfs(root: Path) -> Path:
    """GPUs 11 and 12 below one switch, c1 below a switch of a switch, c2 on a root port."""
    paths = {
        "0000:11:00.0": "pci0000:00/0000:00:01.1/0000:0e:00.0/0000:0f:00.0/0000:11:00.0",
        "0000:12:00.0": "pci0000:00/0000:00:01.1/0000:0e:00.0/0000:0f:01.0/0000:12:00.0",
        "0000:c1:00.0": "pci0000:80/0000:80:01.1/0000:81:00.0/0000:82:00.0/0000:83:00.0/"
        "0000:84:00.0/0000:c1:00.0",
        "0000:c2:00.0": "pci0000:80/0000:80:03.1/0000:c2:00.0",
    }
    bus = root / "bus/pci/devices"
    bus.mkdir(parents=True)
    for address, path in paths.items():
        device = root / "devices" / path
        device.mkdir(parents=True)
        node = int(address.startswith("0000:c"))
        (device / "numa_node").write_text(f"{node}\n")
        (device / "local_cpulist").write_text("0-3\n" if node == 0 else "4-7\n")
        (bus / address).symlink_to(device)
    return root


def test_nvml_and_sysfs_are_read(tmp_path: Path) -> None:
    nvml = FakeNvml(LEVELS, denied={(3, 1)})
    topology = read_machine(nvml, fake_sysfs(tmp_path))
    assert [domain.gpus for domain in topology.domains] == [(0, 1), (2, 3)]
    assert [str(topology.link(*pair)) for pair in ((0, 1), (2, 3), (1, 2))] == ["PIX", "PXB", "SYS"]
    assert [gpu.switches for gpu in topology.gpus] == [
        ("0000:0e:00.0",),
        ("0000:0e:00.0",),
        ("0000:81:00.0", "0000:83:00.0"),
        (),
    ]
    assert topology.switch_groups == ((0, 1),)
    assert topology.gpu(2).cores == (4, 5, 6, 7)
    assert topology.gpu(2).memory_bytes == 96 << 30
    assert topology.driver == "580.10"
    assert topology.peer_access((0, 1)) is True
    assert topology.peer_access((1, 3)) is False
    assert any("GPU1-GPU3" in note for note in topology.notes)


def test_machines_whose_firmware_hides_the_node(tmp_path: Path) -> None:
    fake_sysfs(tmp_path)
    for node in tmp_path.rglob("numa_node"):
        node.write_text("-1\n")
    topology = read_machine(FakeNvml(LEVELS), tmp_path)
    assert topology.domain_basis == "cores"
    topology = read_machine(FakeNvml(LEVELS), tmp_path / "nowhere")
    assert (topology.domain_basis, topology.gpu(0).switches) == ("links", ())
    assert [domain.gpus for domain in topology.domains] == [(0, 1), (2, 3)]


def test_nvlink_hides_the_pcie_level(tmp_path: Path) -> None:
    topology = read_machine(FakeNvml(LEVELS, lanes={(0, 1): 4}), tmp_path)
    assert topology.link(0, 1) == Link(LinkKind.NVLINK, 4)


def test_unknown_level_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="GPU2-GPU3 the unknown topology level 25"):
        read_machine(FakeNvml(LEVELS | {(2, 3): 25}), tmp_path)


def test_machine_without_gpus() -> None:
    class Empty(FakeNvml):
        def gpus(self) -> list[NvmlGpu]:
            return []

    with pytest.raises(NvmlUnavailable, match="no GPU"):
        read_machine(Empty({}))


def test_pci_addresses_of_nvml_and_sysfs() -> None:
    assert sysfs_address("00000000:C1:00.0") == "0000:c1:00.0"
    assert sysfs_address("00010000:01:00.0") == "10000:01:00.0"
