"""``sglang-ddtree launch``: carry a plan out on this machine."""

from __future__ import annotations

import argparse
import importlib.util
import socket
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from sglang_ddtree.cluster.launch.service import Service


def add(commands: Any) -> None:
    """Add the subcommand."""
    from sglang_ddtree.cluster.commands.arguments import add_arguments

    parser = commands.add_parser(
        "launch",
        help="start servers and router as planned, with ranks bound to cores; ends everything "
        "when a part ends",
    )
    add_arguments(parser)
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu: --replicas servers of --tp ranks on this machine's cores; --model is a folder "
        "or a bundled pair such as tiny-dense",
    )
    parser.add_argument("--node-rank", type=int, default=0, help="which of --nodes this one is")
    parser.add_argument("--start-timeout", type=float, default=1800, metavar="S")
    parser.add_argument("--drain-timeout", type=float, default=300, metavar="S")
    parser.add_argument("server_flags", nargs="*", metavar="-- FLAGS", help="for every server")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT (0), the end of a part (1); 2 for senseless arguments."""
    from sglang_ddtree.cluster.commands.arguments import UsageError
    from sglang_ddtree.cluster.launch.supervisor import Supervisor
    from sglang_ddtree.cluster.planning.plan import PlanRefused

    try:
        service = _cpu_service(args) if args.device == "cpu" else _gpu_service(args)
        _require_router(service)
        _require_free_ports(service)
    except (UsageError, PlanRefused) as error:
        print(f"sglang-ddtree launch: {error}", file=sys.stderr)
        return 2
    return Supervisor(service, args.start_timeout, args.drain_timeout).run()


def _gpu_service(args: argparse.Namespace) -> Service:
    from sglang_ddtree.cluster.commands.arguments import UsageError, read_arguments
    from sglang_ddtree.cluster.commands.report import plan_report
    from sglang_ddtree.cluster.launch.environment import DRAFTER_PATH
    from sglang_ddtree.cluster.launch.service import gpu_service

    if args.topology:
        raise UsageError("launch serves on this machine: leave out --topology, or use plan")
    question = read_arguments(args)
    if question.topology is None:
        raise UsageError(f"{question.no_topology.split(';')[0]}; without GPUs add --device cpu")
    if not 0 <= args.node_rank < args.nodes:
        raise UsageError(f"--node-rank {args.node_rank} is none of --nodes {args.nodes}")
    plan = question.plan()
    service = gpu_service(plan, question.endpoints, args.node_rank, args.server_flags)
    if any(DRAFTER_PATH in server.command.argv for server in service.servers):
        raise UsageError(f"{plan.model.name} has no public drafter: give --draft-model-path")
    print(plan_report(plan, question.endpoints))
    return service


def _cpu_service(args: argparse.Namespace) -> Service:
    from sglang_ddtree.cluster.commands.arguments import UsageError
    from sglang_ddtree.cluster.launch.environment import Endpoints
    from sglang_ddtree.cluster.launch.service import bundled_pair, cpu_service
    from sglang_ddtree.pairs import PairNotFoundError

    if args.topology or args.nodes > 1:
        raise UsageError("--device cpu serves on this machine: leave out --topology and --nodes")
    try:
        pair = bundled_pair(args.model)
    except PairNotFoundError as error:
        raise UsageError(str(error)) from error
    target, drafter = pair if pair else (args.model_path or args.model, None)
    endpoints = Endpoints(
        args.host, args.port, model_path=target, draft_path=args.draft_model_path or drafter
    )
    try:
        return cpu_service(
            endpoints,
            1 if args.tp is None else args.tp,
            1 if args.replicas is None else args.replicas,
            args.budget,
            args.server_flags,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def _require_router(service: Service) -> None:
    from sglang_ddtree.cluster.commands.arguments import UsageError

    if service.router is not None and importlib.util.find_spec("sglang_router") is None:
        raise UsageError(
            f"{len(service.servers)} replicas need SGLang's router: pip install sglang-router, or "
            "--replicas 1"
        )


def _require_free_ports(service: Service) -> None:
    from sglang_ddtree.cluster.commands.arguments import UsageError

    for url in {service.url, *(server.url for server in service.servers)}:
        where = urlsplit(url)
        with socket.socket() as probe:
            if probe.connect_ex((str(where.hostname), where.port or 0)) == 0:
                raise UsageError(f"something already listens on {url}: give another --port")
