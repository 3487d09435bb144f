"""Which all-reduce SGLang 0.5.23 would use for a group."""

from __future__ import annotations

from collections.abc import Iterable

from sglang_ddtree.cluster.facts.allreduce import NCCL, NVLINK, PCIE_IPC
from sglang_ddtree.cluster.facts.models import ModelFacts
from sglang_ddtree.cluster.machine.topology import LinkKind, Topology


def default_transport(
    topology: Topology, gpus: Iterable[int], model: ModelFacts, deterministic: bool
) -> str:
    """The transport of a group with the settings that a plan makes.

    deterministic: whether the server runs with deterministic inference.
    """
    members = tuple(gpus)
    if len(members) > 1 and topology.widest_link(members) is LinkKind.NVLINK:
        return NVLINK
    obstacle = pcie_ipc_obstacle(topology, members, model, deterministic)
    return PCIE_IPC if obstacle is None else NCCL


def pcie_ipc_obstacle(
    topology: Topology, gpus: Iterable[int], model: ModelFacts, deterministic: bool
) -> str | None:
    """Why SGLang 0.5.23 would not reduce over FlashInfer's ``pcie_ipc``; None where it would.

    ``_ELIGIBLE_GROUP_NAMES``, ``eligible_group`` and ``_warn_untuned_dtype`` tell what SGLang asks
    of the group (srt/distributed/device_communicators/pcie_ipc_ar.py:85,103,117@0.5.23); the hidden
    sizes are those that FlashInfer's table covers as it comes (flashinfer#4463), to which the
    server's own tuning may add.
    """
    members = tuple(gpus)
    if len(members) not in (4, 8):
        return f"{len(members)} ranks: it serves 4 and 8 (two take the custom all-reduce first)"
    if any(topology.link(a, b).kind is LinkKind.NVLINK for a in members for b in members):
        return "NVLink: the custom all-reduce comes first"
    if deterministic:
        return "deterministic inference keeps it off"
    if topology.peer_access(members) is False:
        return "no peer access between some of the GPUs"
    if len(members) == 4 and model.hidden != 4096:
        return f"4 ranks: its table covers hidden size 4096, not {model.hidden}"
    if len(members) == 8 and model.hidden < 6144:
        return f"8 ranks: its table covers hidden sizes from 6144, not {model.hidden}"
    return None
