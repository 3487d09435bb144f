"""What ``launch`` starts: servers, the router in front of several, and where their ranks belong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sglang_ddtree import pairs
from sglang_ddtree.cluster.launch.environment import (
    Command,
    Endpoints,
    Setting,
    replica_port,
    router_argv,
    router_command,
    server_commands,
    url_of,
)
from sglang_ddtree.cluster.machine.cores import format_cores
from sglang_ddtree.cluster.machine.cpu_machine import spread_ranks, usable_nodes
from sglang_ddtree.cluster.planning.plan import Plan


@dataclass(frozen=True)
class ServerSpec:
    """One server process.

    place: its GPUs or cores, in words. ranks: planned cores of each of its ranks, empty where the
    plan binds none.
    """

    name: str
    place: str
    command: Command
    url: str
    ranks: tuple[tuple[int, ...], ...]

    @property
    def cores(self) -> tuple[int, ...]:
        """All planned cores, for the processes beside the ranks; empty where a rank is unbound."""
        if not all(self.ranks):
            return ()
        return tuple(sorted({core for cores in self.ranks for core in cores}))


@dataclass(frozen=True)
class Service:
    """Servers, and the router in front of them where there are several."""

    servers: tuple[ServerSpec, ...]
    router: Command | None
    url: str


def gpu_service(plan: Plan, endpoints: Endpoints, node_rank: int, flags: Sequence[str]) -> Service:
    """The plan as a service; `flags` are added to every server's command.

    node_rank: which of several machines this is.
    """
    commands = server_commands(plan, endpoints)
    groups = plan.chosen.groups
    if endpoints.nodes > 1:
        commands, groups = (commands[node_rank],), groups[:1]
    servers = []
    for i, (command, group) in enumerate(zip(commands, groups, strict=True)):
        gpus = ",".join(map(str, group.gpus))
        name, place = f"replica {i}", f"GPUs {gpus}"
        url = url_of(endpoints.host, replica_port(endpoints, len(groups), i))
        domain_of = plan.topology.domain_of
        domains = [plan.topology.domains[domain_of[gpu]] for gpu in group.gpus]
        # SGLang binds by --numa-node, so only where the plan gives it.
        bound = "--numa-node" in command.argv
        ranks = tuple(domain.cores if bound else () for domain in domains)
        command = replace(command, argv=(*command.argv, *flags))
        servers.append(ServerSpec(name, place, command, url, ranks))
    router = router_command(plan, endpoints)
    return Service(tuple(servers), router, url_of(endpoints.host, endpoints.port))


def cpu_service(
    endpoints: Endpoints, tp: int, replicas: int, budget: int | None, flags: Sequence[str]
) -> Service:
    """Replicas on this machine's cores, each rank on cores of its own.

    endpoints: with the model and, for DDTREE, the drafter. Raises ValueError for senseless counts.
    """
    if tp < 1 or replicas < 1:
        raise ValueError(f"launch serves nothing with --tp {tp} and --replicas {replicas}")
    cores = spread_ranks(usable_nodes(), tp * replicas)
    servers = []
    for i in range(replicas):
        ranks = cores[i * tp : (i + 1) * tp]
        port = replica_port(endpoints, replicas, i)
        argv = ["python", "-m", "sglang.launch_server"]
        argv += ["--model-path", str(endpoints.model_path), "--device", "cpu"]
        if endpoints.draft_path and budget != 0:
            argv += ["--speculative-algorithm", "DDTREE"]
            argv += ["--speculative-draft-model-path", endpoints.draft_path]
            argv += ["--speculative-ddtree-budget", str(budget)] if budget else []
        argv += ["--tp-size", str(tp), "--host", endpoints.host, "--port", str(port), *flags]
        binding = "|".join(format_cores(group) for group in ranks)
        threads = str(min(len(group) for group in ranks))
        settings = (
            Setting("SGLANG_CPU_OMP_THREADS_BIND", binding, "cores of each rank"),
            Setting("OMP_NUM_THREADS", threads, "a thread for each core of a rank"),
        )
        name, place = f"replica {i}", f"cores {binding.replace('|', ' | ')}"
        url = url_of(endpoints.host, port)
        servers.append(ServerSpec(name, place, Command(tuple(argv), settings), url, ranks))
    argv_of_router = router_argv(endpoints, replicas)
    router = None if argv_of_router is None else Command(argv_of_router)
    url = url_of(endpoints.host, endpoints.port)
    return Service(tuple(servers), router, url)


def bundled_pair(name: str) -> tuple[str, str] | None:
    """Target and drafter folder of a demo pair; None for another name, and for one whose target
    is fetched.

    Raises PairNotFoundError where the pair is known but this is no checkout.
    """
    if name not in pairs.NAMES:
        return None
    folder = pairs.folder_of(name)
    if not (folder / "target").is_dir():
        return None
    return str(folder / "target"), str(folder / "drafter")
