"""The machine as data: its GPUs, how each pair is linked, and their NUMA domains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum


class LinkKind(IntEnum):
    """Link classes of ``nvidia-smi topo -m``, in order of distance."""

    SELF = 0
    NVLINK = 1
    PIX = 2  # one PCIe switch
    PXB = 3  # several PCIe switches, no host bridge
    PHB = 4  # one PCIe host bridge
    NODE = 5  # several host bridges of one NUMA node
    SYS = 6  # the interconnect between NUMA nodes


@dataclass(frozen=True)
class Link:
    """One link; `lanes` counts the bonded NVLinks and is 0 for PCIe."""

    kind: LinkKind
    lanes: int = 0

    def __str__(self) -> str:
        if self.kind is LinkKind.SELF:
            return "X"
        return f"NV{self.lanes}" if self.kind is LinkKind.NVLINK else self.kind.name


@dataclass(frozen=True)
class Gpu:
    """One GPU; what the source of the topology does not say is None or empty.

    index: number in PCI bus order, as ``nvidia-smi`` prints it.
    numa_nodes: NUMA nodes the GPU is close to, normally one.
    cores: CPU cores close to the GPU.
    memory_node: NUMA node that the GPU's own memory forms ("GPU NUMA ID"), on coherent systems.
    memory_bytes: total device memory.
    switches: PCI addresses of the upstream ports above the GPU, from the root to the GPU.
    """

    index: int
    numa_nodes: tuple[int, ...] = ()
    cores: tuple[int, ...] = ()
    memory_node: int | None = None
    name: str | None = None
    memory_bytes: int | None = None
    pci_address: str | None = None
    switches: tuple[str, ...] = ()


@dataclass(frozen=True)
class Nic:
    """A network card: its column in the matrix and, where a legend names it, its device."""

    name: str
    device: str | None = None


@dataclass(frozen=True)
class Domain:
    """GPUs between which no traffic crosses the interconnect between NUMA nodes.

    numa_node: the node, or None where the topology does not name one.
    """

    label: str
    gpus: tuple[int, ...]
    numa_node: int | None = None
    cores: tuple[int, ...] = ()


@dataclass(frozen=True)
class Topology:
    """GPUs of one machine and the links between them.

    links: link of each pair, under (smaller index, larger index).
    nic_links: link of a GPU index and a NIC name.
    p2p: whether the driver allows peer access, under the keys of `links`; None where unknown.

    Raises ValueError for repeated GPUs or a pair without a link.
    """

    gpus: tuple[Gpu, ...]
    links: Mapping[tuple[int, int], Link]
    nics: tuple[Nic, ...] = ()
    nic_links: Mapping[tuple[int, str], Link] = field(default_factory=dict)
    driver: str | None = None
    p2p: Mapping[tuple[int, int], bool] | None = None
    source: str = "unknown"

    def __post_init__(self) -> None:
        if not self.gpus:
            raise ValueError("a topology needs at least one GPU")
        indices = self.indices
        if len(set(indices)) != len(indices):
            raise ValueError(f"GPU indices repeat: {list(indices)}")
        for i, a in enumerate(indices):
            for b in indices[i + 1 :]:
                if (min(a, b), max(a, b)) not in self.links:
                    raise ValueError(f"no link between GPU{a} and GPU{b}")

    @property
    def indices(self) -> tuple[int, ...]:
        """GPU indices in the order of `gpus`."""
        return tuple(gpu.index for gpu in self.gpus)

    def gpu(self, index: int) -> Gpu:
        """The GPU of an index."""
        return self.gpus[self.indices.index(index)]

    def link(self, a: int, b: int) -> Link:
        """The link of two GPU indices."""
        return Link(LinkKind.SELF) if a == b else self.links[min(a, b), max(a, b)]

    def peer_access(self, gpus: Iterable[int]) -> bool | None:
        """Whether all pairs of `gpus` have peer access; None where the source does not say."""
        if self.p2p is None:
            return None
        members = sorted(gpus)
        return all(self.p2p[a, b] for i, a in enumerate(members) for b in members[i + 1 :])

    def widest_link(self, gpus: Iterable[int]) -> LinkKind:
        """The most distant link class inside a set of GPUs."""
        members = tuple(gpus)
        return max(self.link(a, b).kind for a in members for b in members)

    @property
    def domain_basis(self) -> str:
        """What `domains` rests on: ``numa`` nodes, ``cores`` or, failing both, ``links``."""
        if all(gpu.numa_nodes for gpu in self.gpus):
            return "numa"
        cores = [set(gpu.cores) for gpu in self.gpus]
        if all(cores) and all(a == b or not a & b for a in cores for b in cores):
            return "cores"
        return "links"

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The GPUs partitioned by NUMA domain, each in index order.

        Link classes alone are no basis where affinity is known: there are boxes with a working
        NUMA column on which every pair is SYS. Without any affinity, GPUs are together that a
        link other than SYS connects, as only SYS leaves a NUMA node by its definition.
        """
        basis = self.domain_basis
        if basis == "links":
            near = self._components(LinkKind.NODE)
            return tuple(Domain(f"island {i}", gpus) for i, gpus in enumerate(near))
        members: dict[tuple[int, ...], list[int]] = {}
        for gpu in sorted(self.gpus, key=lambda gpu: gpu.index):
            members.setdefault(gpu.numa_nodes if basis == "numa" else gpu.cores, []).append(
                gpu.index
            )
        found = []
        for i, (key, gpus) in enumerate(sorted(members.items())):
            label = f"NUMA {'+'.join(map(str, key))}" if basis == "numa" else f"cores {i}"
            node = key[0] if basis == "numa" and len(key) == 1 else None
            cores = sorted({core for index in gpus for core in self.gpu(index).cores})
            found.append(Domain(label, tuple(gpus), node, tuple(cores)))
        return tuple(found)

    @property
    def domain_of(self) -> dict[int, int]:
        """GPU index to the position of its domain in `domains`."""
        return {gpu: i for i, domain in enumerate(self.domains) for gpu in domain.gpus}

    @property
    def switch_groups(self) -> tuple[tuple[int, ...], ...]:
        """GPUs below one PCIe switch, where a switch has several.

        From the upstream ports when sysfs was read, from PIX links otherwise; the matrix does not
        show a switch whose GPUs NVLink connects, too.
        """
        if any(gpu.switches for gpu in self.gpus):
            below: dict[str, list[int]] = {}
            for gpu in self.gpus:
                if gpu.switches:
                    below.setdefault(gpu.switches[-1], []).append(gpu.index)
            groups = [tuple(sorted(members)) for members in below.values()]
        else:
            groups = list(self._components(LinkKind.PIX, nvlink=False))
        return tuple(sorted(group for group in groups if len(group) > 1))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know before trusting a plan made from this topology."""
        notes = []
        if self.domain_basis == "links":
            notes.append(
                "no NUMA or core affinity: domains follow the link classes and no rank can be "
                "bound to cores"
            )
            if all(link.kind is LinkKind.SYS for link in self.links.values()) and self.links:
                notes.append(
                    "every pair is SYS and nothing else is known, so every group counts as "
                    "crossing sockets: measure before trusting this"
                )
        domain_of = self.domain_of
        near = [
            f"GPU{a}-GPU{b} {link}"
            for (a, b), link in sorted(self.links.items())
            if domain_of[a] != domain_of[b] and LinkKind.PIX <= link.kind < LinkKind.SYS
        ]
        if near:
            notes.append(
                "affinity puts these pairs in different NUMA nodes, their link class in one: "
                + ", ".join(near)
            )
        if self.p2p is not None and not all(self.p2p.values()):
            pairs = [
                f"GPU{a}-GPU{b}" for (a, b), allowed in sorted(self.p2p.items()) if not allowed
            ]
            notes.append("no peer access: " + ", ".join(pairs))
        return tuple(notes)

    def with_memory(self, memory_bytes: int) -> Topology:
        """The same machine with `memory_bytes` on every GPU whose memory is not known."""
        gpus = (
            gpu if gpu.memory_bytes is not None else replace(gpu, memory_bytes=memory_bytes)
            for gpu in self.gpus
        )
        return replace(self, gpus=tuple(gpus))

    def _components(self, widest: LinkKind, nvlink: bool = True) -> tuple[tuple[int, ...], ...]:
        """Connected components over links no more distant than `widest`."""
        left = sorted(self.indices)
        components = []
        while left:
            component, frontier = {left[0]}, [left[0]]
            while frontier:
                a = frontier.pop()
                for b in left:
                    kind = self.link(a, b).kind
                    if b not in component and kind <= widest and (nvlink or kind > LinkKind.NVLINK):
                        component.add(b)
                        frontier.append(b)
            components.append(tuple(sorted(component)))
            left = [gpu for gpu in left if gpu not in component]
        return tuple(components)
