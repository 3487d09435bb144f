"""Reads the text that ``nvidia-smi topo -m`` prints, of any driver since the NVLink ones.

The layout: a header with one column for each GPU and network card, then up to three affinity
columns; a row for each device; a legend. Columns are separated by tabs, and terminals, pagers and
chat programs turn these into spaces, so a row is read by its tokens. Tabs, where they are left,
decide which affinity a row leaves empty. Nothing is guessed: what does not fit is a
`TopologyTextError` that names the line and the token.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sglang_ddtree.cluster.machine.cores import parse_cores
from sglang_ddtree.cluster.machine.topology import Gpu, Link, LinkKind, Nic, Topology

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\([A-Z0-9]")
_GPU = re.compile(r"GPU(\d+)")
_NVLINK = re.compile(r"NV([1-9]\d*)")
_AFFINITY = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_LEGEND_ENTRY = re.compile(r"(X|NV#|PIX|PXB|PHB|NODE|SYS|SOC)\s*=\s*\S.*")
_NIC_ENTRY = re.compile(r"(\S+):\s*(\S+)")
_LINKS = {
    "X": LinkKind.SELF,
    "PIX": LinkKind.PIX,
    "PXB": LinkKind.PXB,
    "PHB": LinkKind.PHB,
    "NODE": LinkKind.NODE,
    "SYS": LinkKind.SYS,
    "SOC": LinkKind.SYS,  # the name of SYS in drivers before 384
}


class TopologyTextError(ValueError):
    """Text that is no topology; `line` counts from 1 and is 0 where no line is to blame."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.line = line


@dataclass(frozen=True)
class _Header:
    line: int
    devices: tuple[str, ...]
    affinity: tuple[str, ...]


@dataclass(frozen=True)
class _Row:
    line: int
    links: tuple[Link, ...]
    affinity: dict[str, str]


def parse_topology(text: str, source: str = "text") -> Topology:
    """The topology that a text describes, without memory, driver and peer access.

    Raises TopologyTextError with the line and the token that cannot be understood.
    """
    header: _Header | None = None
    rows: dict[str, _Row] = {}
    devices_of_nics: dict[str, str] = {}
    in_legend = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = _ESCAPE.sub("", raw).rstrip()
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if any(ord(char) < 32 and char != "\t" for char in line):
            raise TopologyTextError(number, f"control character in {line!r}")
        if header is None:
            if any(_GPU.fullmatch(word) for word in words):
                header = _read_header(number, line)
            elif "nvidia-smi" not in words:
                raise TopologyTextError(number, f"{line.strip()!r} before the header of the matrix")
        elif line.strip() in ("Legend:", "NIC Legend:"):
            in_legend = True
        elif in_legend:
            _read_legend(number, line.strip(), header, devices_of_nics)
        else:
            if words[0] in rows:
                raise TopologyTextError(number, f"second row for {words[0]!r}")
            rows[words[0]] = _read_row(number, line, header)
    if header is None:
        raise TopologyTextError(0, "no header with GPU columns")
    return _build(header, rows, devices_of_nics, source)


def _read_header(number: int, line: str) -> _Header:
    starts = {name: line.find(name) for name in _AFFINITY if name in line}
    names = tuple(sorted(starts, key=lambda name: starts[name]))
    end = min(starts.values(), default=len(line))
    devices = tuple(line[:end].split())
    rest = line[end:]
    for name in names:
        rest = rest.replace(name, " ", 1)
    if rest.strip():
        raise TopologyTextError(number, f"unknown column {rest.split()[0]!r}")
    for i, device in enumerate(devices):
        if device in devices[:i]:
            raise TopologyTextError(number, f"second column for {device!r}")
    return _Header(number, devices, names)


def _read_row(number: int, line: str, header: _Header) -> _Row:
    name, *tokens = line.split()
    if name not in header.devices:
        raise TopologyTextError(number, f"row {name!r} has no column")
    width = len(header.devices)
    if len(tokens) < width:
        raise TopologyTextError(number, f"{name} has {len(tokens)} links for {width} devices")
    links = []
    for other, token in zip(header.devices, tokens[:width], strict=True):
        nvlink = _NVLINK.fullmatch(token)
        if nvlink is None and token not in _LINKS:
            raise TopologyTextError(number, f"unknown link {token!r} between {name} and {other}")
        link = Link(LinkKind.NVLINK, int(nvlink[1])) if nvlink else Link(_LINKS[token])
        if (link.kind is LinkKind.SELF) != (name == other):
            raise TopologyTextError(number, f"{token!r} as the link between {name} and {other}")
        links.append(link)
    return _Row(number, tuple(links), _read_affinity(number, line, name, tokens[width:], header))


def _read_affinity(
    number: int, line: str, name: str, tokens: list[str], header: _Header
) -> dict[str, str]:
    """Affinity column to text, for those of the columns that the row fills."""
    columns = header.affinity
    if len(tokens) > len(columns):
        raise TopologyTextError(number, f"{name} has a token too many: {tokens[len(columns)]!r}")
    if len(tokens) == len(columns):
        filled = dict(zip(columns, tokens, strict=True))
    elif all(token == "N/A" for token in tokens):
        filled = {}
    elif "\t" in line and columns == _AFFINITY[: len(columns)]:
        # The tool writes the NUMA column two tab stops wide.
        cells = [cell.strip() for cell in line.split("\t")][1 + len(header.devices) :]
        cells += [""] * (len(_AFFINITY) + 1 - len(cells))
        filled = {"CPU Affinity": cells[0], "NUMA Affinity": cells[1], "GPU NUMA ID": cells[3]}
        if [cell for cell in filled.values() if cell] != tokens:
            raise TopologyTextError(number, f"cannot tell the column of {tokens[0]!r}")
    else:
        raise TopologyTextError(
            number, f"cannot tell which of {', '.join(columns)} of {name} {tokens[0]!r} is"
        )
    return {column: text for column, text in filled.items() if text not in ("", "N/A")}


def _read_legend(number: int, line: str, header: _Header, nics: dict[str, str]) -> None:
    entry = _NIC_ENTRY.fullmatch(line)
    if entry is not None:
        if entry[1] not in header.devices:
            raise TopologyTextError(number, f"legend for {entry[1]!r}, which has no column")
        nics[entry[1]] = entry[2]
    elif _LEGEND_ENTRY.fullmatch(line) is None:
        raise TopologyTextError(number, f"{line!r} is no entry of the legend")


def _build(
    header: _Header, rows: dict[str, _Row], devices_of_nics: dict[str, str], source: str
) -> Topology:
    for name in header.devices:
        if name not in rows:
            raise TopologyTextError(header.line, f"column {name!r} has no row")
    links: dict[tuple[str, str], Link] = {
        (name, other): link
        for name, row in rows.items()
        for other, link in zip(header.devices, row.links, strict=True)
    }
    for (a, b), link in links.items():
        if links[b, a] != link:
            raise TopologyTextError(
                rows[a].line, f"{a}-{b} is {link}, but {b}-{a} (line {rows[b].line}) {links[b, a]}"
            )
    index = {name: int(match[1]) for name in header.devices if (match := _GPU.fullmatch(name))}
    nics = [name for name in header.devices if name not in index]
    return Topology(
        gpus=tuple(_gpu(i, rows[name]) for name, i in index.items()),
        links={
            (index[a], index[b]): links[a, b] for a in index for b in index if index[a] < index[b]
        },
        nics=tuple(Nic(name, devices_of_nics.get(name, _own_name(name))) for name in nics),
        nic_links={(i, nic): links[name, nic] for name, i in index.items() for nic in nics},
        source=source,
    )


def _own_name(nic: str) -> str | None:
    """Older drivers head the columns with the device itself, newer ones with NIC0, NIC1, ..."""
    return None if re.fullmatch(r"NIC\d+", nic) else nic


def _gpu(index: int, row: _Row) -> Gpu:
    def read(column: str) -> tuple[int, ...]:
        try:
            return parse_cores(row.affinity[column]) if column in row.affinity else ()
        except ValueError as error:
            raise TopologyTextError(row.line, f"{column} of GPU{index}: {error}") from error

    memory_node = read("GPU NUMA ID")
    if len(memory_node) > 1:
        raise TopologyTextError(
            row.line, f"GPU NUMA ID of GPU{index}: {row.affinity['GPU NUMA ID']!r} is no one node"
        )
    return Gpu(
        index=index,
        numa_nodes=read("NUMA Affinity"),
        cores=read("CPU Affinity"),
        memory_node=memory_node[0] if memory_node else None,
    )
