"""Environment and command lines of a plan.

Only what a user may set is set. What needs root is reported by `root_tuning`, never applied.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from sglang_ddtree.cluster.facts.allreduce import NCCL_TUNED, PCIE_IPC
from sglang_ddtree.cluster.facts.transport import pcie_ipc_obstacle
from sglang_ddtree.cluster.machine.topology import LinkKind, Topology
from sglang_ddtree.cluster.planning.groups import DeviceGroup, peer_level
from sglang_ddtree.cluster.planning.plan import Plan
from sglang_ddtree.recurrent_mode import DEFAULT_RECURRENT_MODE

# DCP 8 on K2.6 at TP8, against DCP 1: 2.2 ms more at an empty context, 3.3 instead of 10.9 ms for
# 128k tokens (kimi-k26-v4 notes). The lines meet at 2.2 / (10.9 - 3.3) of 128k.
DCP_CONTEXT = 38_000
# Stands in a command for a drafter that has no public repository.
DRAFTER_PATH = "PATH_OF_THE_DRAFTER"


@dataclass(frozen=True)
class Setting:
    """One environment variable; a value of None unsets it."""

    name: str
    value: str | None
    why: str


@dataclass(frozen=True)
class Command:
    """One process to start."""

    argv: tuple[str, ...]
    settings: tuple[Setting, ...] = ()

    def shell(self) -> str:
        """The command as one would type it, one setting or option a line."""
        words = ["env"] if self.settings else []
        words += [f"-u {setting.name}" for setting in self.settings if setting.value is None]
        words += [
            f"{setting.name}={shlex.quote(setting.value)}"
            for setting in self.settings
            if setting.value is not None
        ]
        line = list(self.argv[:3])
        words.append(shlex.join(line))
        for word in self.argv[3:]:
            if word.startswith("--"):
                words.append(word)
            else:
                words[-1] += f" {shlex.quote(word)}"
        return " \\\n    ".join(words)


@dataclass(frozen=True)
class Advice:
    """Tuning that needs root: what, why, and how to look at it as any user."""

    what: str
    why: str
    look: str


@dataclass(frozen=True)
class Endpoints:
    """Where servers listen and which weights they load, by default the repositories of the facts.

    nodes: machines that one replica spans, each with this plan's GPUs; needs `dist_init_addr`
    (host:port of node 0).
    """

    host: str = "127.0.0.1"
    port: int = 30000
    model_path: str | None = None
    draft_path: str | None = None
    nodes: int = 1
    dist_init_addr: str | None = None

    def __post_init__(self) -> None:
        if self.nodes < 1 or (self.nodes > 1 and not self.dist_init_addr):
            raise ValueError("several nodes need the address of the first, host:port")


def server_commands(plan: Plan, endpoints: Endpoints | None = None) -> tuple[Command, ...]:
    """One command for each replica, or one for each node of a replica that spans machines.

    Raises ValueError where several replicas are to span machines.
    """
    endpoints = endpoints or Endpoints()
    groups = plan.chosen.groups
    if endpoints.nodes == 1:
        return tuple(_server(plan, group, endpoints, i, 0) for i, group in enumerate(groups))
    if len(groups) > 1:
        raise ValueError(f"{plan.chosen.label} over {endpoints.nodes} nodes: plan one replica")
    return tuple(_server(plan, groups[0], endpoints, 0, node) for node in range(endpoints.nodes))


def router_command(plan: Plan, endpoints: Endpoints | None = None) -> Command | None:
    """SGLang's router in front of several replicas, by prefix cache; None for a single one."""
    argv = router_argv(endpoints or Endpoints(), len(plan.chosen.groups))
    return None if argv is None else Command(argv)


def router_argv(endpoints: Endpoints, replicas: int) -> tuple[str, ...] | None:
    """The router's command line; None where there is nothing to route between.

    SGLang 0.5.23 keeps its router in a package of its own, ``sglang-router``.
    """
    if replicas == 1:
        return None
    ports = [replica_port(endpoints, replicas, i) for i in range(replicas)]
    urls = [url_of(endpoints.host, port) for port in ports]
    argv = ["python", "-m", "sglang_router.launch_router", "--worker-urls", *urls]
    argv += ["--policy", "cache_aware", "--host", endpoints.host, "--port", str(endpoints.port)]
    # Its metrics would listen on port 29000 of all interfaces, which a second router can't.
    metrics = replica_port(endpoints, replicas, replicas)
    argv += ["--prometheus-host", endpoints.host, "--prometheus-port", str(metrics)]
    return tuple(argv)


def url_of(host: str, port: int) -> str:
    """Where a server answers; IPv6 addresses are put in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def replica_port(endpoints: Endpoints, replicas: int, replica: int) -> int:
    """The first port is the user's door: the router's, or that of a single server."""
    return endpoints.port if replicas == 1 else endpoints.port + 1 + replica


def group_settings(plan: Plan, group: DeviceGroup, nodes: int = 1) -> tuple[Setting, ...]:
    """Environment of one replica on `nodes` machines."""
    settings = [
        Setting("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "number GPUs as nvidia-smi does"),
        Setting("CUDA_VISIBLE_DEVICES", ",".join(map(str, group.gpus)), "GPUs in rank order"),
    ]
    if group.tp * nodes == 1:
        return tuple(settings)
    level = peer_level(plan.topology, group.gpus)
    if level is not None and plan.topology.peer_access(group.gpus) is not False:
        why = "peer access over host bridges and sockets, which NCCL leaves unused by itself"
        settings.append(Setting("NCCL_P2P_LEVEL", level, why))
    if nodes == 1:
        settings.append(Setting("NCCL_IB_DISABLE", "1", "one machine: no network to search for"))
    if group.tp < 8 or plan.chosen.transport != NCCL_TUNED:
        why = "a graph file is for 8 ranks; others fail on it"
        settings.append(Setting("NCCL_GRAPH_FILE", None, why))
    if plan.chosen.transport == PCIE_IPC and nodes == 1:
        why = "all-reduce by staged pushes over PCIe instead of NCCL, bf16 only"
        settings.append(Setting("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "1", why))
    return tuple(settings)


def hints(plan: Plan, endpoints: Endpoints | None = None) -> tuple[str, ...]:
    """What the plan leaves to the user, with the reason."""
    found = []
    group = plan.chosen.groups[0]
    given = endpoints is not None and endpoints.draft_path
    if plan.budget and not plan.model.drafter.repository and not given:
        found.append(f"no public drafter for {plan.model.name}: put yours for {DRAFTER_PATH}")
    if plan.chosen.tp > 1 and plan.chosen.transport != PCIE_IPC:
        obstacle = pcie_ipc_obstacle(
            plan.topology, group.gpus, plan.model, plan.request.deterministic
        )
        found.append(
            f"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE is not set: {obstacle or 'not asked for'}. Where "
            "the server's tuning covers the shape it may still be faster: measure it"
        )
    if plan.model.latent and plan.chosen.tp > 1 and plan.request.context >= DCP_CONTEXT:
        found.append(
            f"--dcp-size {plan.chosen.tp} (it must divide --tp-size) spreads the latent cache "
            f"over the ranks; measured to pay from about {DCP_CONTEXT:,} tokens of context for "
            "plain decoding. Check that the verify attention supports it before using it with "
            "DDTREE"
        )
    if plan.topology.peer_access(group.gpus) is False:
        found.append("without peer access, transfers go through host memory at about 14 us each")
    unbound = [gpu for g in plan.chosen.groups for gpu in g.gpus if _node(plan, gpu) is None]
    if unbound:
        found.append(f"no --numa-node: the node of GPU {', '.join(map(str, unbound))} is not known")
    return tuple(found)


def root_tuning(topology: Topology) -> tuple[Advice, ...]:
    """What root may want to change on a machine whose GPUs talk over PCIe; empty for others."""
    kinds = {link.kind for link in topology.links.values()}
    if not kinds - {LinkKind.NVLINK}:
        return ()
    advice = [
        Advice(
            "ACS off on root and switch ports",
            "with redirection, peer traffic goes up to the root complex; with a translating IOMMU "
            "NCCL may hang",
            "lspci -vvv | grep ACSCtl",
        ),
        Advice(
            "IOMMU off or passthrough (iommu=off or iommu=pt, by box)",
            "translation slows or breaks peer access",
            "cat /proc/cmdline",
        ),
        Advice(
            "resizable BAR over the whole memory",
            "peers reach only what the BAR shows",
            "nvidia-smi -q -d MEMORY (BAR1 total against FB total)",
        ),
        Advice(
            "nvidia_uvm uvm_disable_hmm=1; pcie_aspm=off pcie_port_pm=off",
            "page migration and link power states cost latency",
            "cat /sys/module/nvidia_uvm/parameters/uvm_disable_hmm; cat /proc/cmdline",
        ),
    ]
    if kinds & {LinkKind.NODE, LinkKind.PHB, LinkKind.SYS}:
        advice.append(
            Advice(
                'NVreg_RegistryDwords="ForceP2P=0x11" for GPUs on host bridges',
                "without it, loads from a peer by custom kernels were about 15 times slower",
                "nvidia-smi topo -p2p r; cat /proc/driver/nvidia/params",
            )
        )
    if len(topology.domains) > 1:
        advice.append(
            Advice(
                "automatic NUMA balancing off",
                "it moves pages of ranks that are bound already",
                "cat /proc/sys/kernel/numa_balancing",
            )
        )
    return tuple(advice)


def _server(
    plan: Plan, group: DeviceGroup, endpoints: Endpoints, replica: int, node: int
) -> Command:
    model, load = plan.model, plan.chosen.load
    assert load is not None
    argv = ["python", "-m", "sglang.launch_server"]
    argv += ["--model-path", endpoints.model_path or model.repository, *model.server_arguments]
    if plan.budget:
        argv += ["--speculative-algorithm", "DDTREE"]
        draft_path = endpoints.draft_path or model.drafter.repository or DRAFTER_PATH
        argv += ["--speculative-draft-model-path", draft_path]
        argv += ["--speculative-ddtree-budget", str(plan.budget)]
        if model.recurrent is not None and load.recurrent_mode != DEFAULT_RECURRENT_MODE:
            argv += ["--speculative-ddtree-recurrent", load.recurrent_mode]
    argv += ["--tp-size", str(group.tp * endpoints.nodes)]
    nodes = [_node(plan, gpu) for gpu in group.gpus]
    if all(numa_node is not None for numa_node in nodes):
        argv += ["--numa-node", *map(str, nodes)]
    argv += ["--max-running-requests", str(load.batch)]
    if plan.request.deterministic:
        argv.append("--enable-deterministic-inference")
    if endpoints.nodes > 1:
        argv += ["--nnodes", str(endpoints.nodes), "--node-rank", str(node)]
        argv += ["--dist-init-addr", str(endpoints.dist_init_addr)]
    port = replica_port(endpoints, len(plan.chosen.groups), replica)
    argv += ["--host", endpoints.host, "--port", str(port)]
    return Command(tuple(argv), group_settings(plan, group, endpoints.nodes))


def _node(plan: Plan, gpu: int) -> int | None:
    nodes = plan.topology.gpu(gpu).numa_nodes
    return nodes[0] if len(nodes) == 1 else None
