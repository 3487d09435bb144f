"""Arguments that ``plan``, ``launch`` and ``probe`` share, and what is read by them."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from sglang_ddtree.cluster.facts.config_facts import ConfigError
from sglang_ddtree.cluster.facts.model_facts import model_facts
from sglang_ddtree.cluster.facts.models import ModelFacts
from sglang_ddtree.cluster.launch.environment import Endpoints
from sglang_ddtree.cluster.machine.discover import NvmlUnavailable, read_machine
from sglang_ddtree.cluster.machine.topology import Topology
from sglang_ddtree.cluster.machine.topology_text import parse_topology
from sglang_ddtree.cluster.planning.cost import Figures
from sglang_ddtree.cluster.planning.plan import Plan, Request, make_plan
from sglang_ddtree.recurrent_mode import (
    DEFAULT_RECURRENT_MODE,
    RECURRENT_MODES,
    recurrent_mode,
)

# An RTX PRO 6000, sold as 96 GB; nvidia-smi shows 97,887 MiB.
DEFAULT_GPU_MEMORY = 97_887 << 20


class UsageError(Exception):
    """Arguments that can't be served; the message says what to change."""


@dataclass(frozen=True)
class Question:
    """Everything a plan is made from. topology: None where there is no GPU and no file."""

    topology: Topology | None
    no_topology: str
    model: ModelFacts
    request: Request
    figures: Figures
    endpoints: Endpoints
    gpu_memory: int
    assumed_memory: bool

    def plan(self) -> Plan:
        """Raises PlanRefused, and UsageError where something makes no sense."""
        if self.topology is None:
            raise UsageError(self.no_topology)
        try:
            return make_plan(self.topology, self.model, self.request, self.figures)
        except ValueError as error:
            raise UsageError(str(error)) from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Model, machine and load; `read_arguments` reads them."""
    target = parser.add_argument_group("model")
    target.add_argument(
        "--model", required=True, metavar="NAME|PATH", help="a known target, or a folder"
    )
    target.add_argument("--model-path", help="weights to serve (default: the known repository)")
    target.add_argument("--draft-model-path", metavar="PATH", help="drafter to serve")
    machine = parser.add_argument_group("machine")
    machine.add_argument(
        "--topology",
        metavar="FILE",
        help="saved output of `nvidia-smi topo -m`, for a plan of another machine",
    )
    machine.add_argument(
        "--gpu-memory",
        type=float,
        metavar="GIB",
        help="memory of a GPU where the topology does not say (default: 95.6, an RTX PRO 6000)",
    )
    machine.add_argument("--probe", metavar="FILE", help="figures that `sglang-ddtree probe` wrote")
    machine.add_argument("--nodes", type=int, default=1, help="machines that one replica spans")
    machine.add_argument("--dist-init-addr", metavar="HOST:PORT", help="of the first machine")
    load = parser.add_argument_group("load")
    load.add_argument("--concurrency", type=int, default=8, help="requests at a time (default: 8)")
    load.add_argument("--context", type=int, default=8192, help="tokens of each (default: 8192)")
    load.add_argument("--budget", type=int, help="tree nodes; 0: plain (default: drafter's chain)")
    load.add_argument("--tp", type=int, help="tensor-parallel size (default: chosen)")
    load.add_argument("--replicas", type=int, help="servers (default: chosen)")
    load.add_argument("--transport", help="all-reduce to plan with, such as nccl-tuned")
    load.add_argument(
        "--recurrent", type=recurrent_mode, choices=RECURRENT_MODES, default=DEFAULT_RECURRENT_MODE
    )
    load.add_argument("--kv-bytes", type=int, choices=(1, 2), default=2, help="2: bf16, 1: fp8")
    load.add_argument("--deterministic", action="store_true")
    listen = parser.add_argument_group("where to listen")
    listen.add_argument("--host", default="127.0.0.1")
    listen.add_argument("--port", type=int, default=30000)


def read_arguments(args: argparse.Namespace) -> Question:
    """Read the files that are named and this machine. Raises UsageError."""
    try:
        model = model_facts(args.model, args.draft_model_path)
        topology, no_topology = _read_topology(args)
        memory = DEFAULT_GPU_MEMORY if args.gpu_memory is None else int(args.gpu_memory * 2**30)
        known = topology is not None and all(gpu.memory_bytes for gpu in topology.gpus)
        topology = None if topology is None else topology.with_memory(memory)
        figures = Figures()
        if args.probe:
            figures = figures.with_probe(json.loads(_read(args.probe)), args.probe)
        if args.tp and args.tp % args.nodes:
            raise UsageError(f"--tp {args.tp} does not divide over --nodes {args.nodes}")
        return Question(
            topology=topology,
            no_topology=no_topology,
            model=model,
            request=Request(
                concurrency=args.concurrency,
                context=args.context,
                budget=_budget(args, model),
                tp=args.tp and args.tp // args.nodes,
                replicas=args.replicas if args.nodes == 1 else 1,
                transport=args.transport,
                recurrent_mode=args.recurrent,
                kv_element_bytes=args.kv_bytes,
                deterministic=args.deterministic,
                nodes=args.nodes,
            ),
            figures=figures,
            endpoints=Endpoints(
                model_path=args.model_path,
                draft_path=args.draft_model_path,
                host=args.host,
                port=args.port,
                nodes=args.nodes,
                dist_init_addr=args.dist_init_addr,
            ),
            gpu_memory=memory,
            assumed_memory=args.gpu_memory is None and not known,
        )
    except (ConfigError, ValueError) as error:
        raise UsageError(str(error)) from error
    except KeyError as error:
        raise UsageError(str(error.args[0])) from error


def _read_topology(args: argparse.Namespace) -> tuple[Topology | None, str]:
    if args.topology:
        return parse_topology(_read(args.topology), args.topology), ""
    try:
        return read_machine(), ""
    except NvmlUnavailable as error:
        return None, f"{error}; for another machine give --topology FILE"


def _budget(args: argparse.Namespace, model: ModelFacts) -> int | None:
    """A model on disk has no drafter but the one that is named with it."""
    if args.budget is None and model.drafter.block == 1:
        return 0
    if args.budget and model.drafter.block == 1:
        raise UsageError(f"--budget {args.budget} needs --draft-model-path, a folder")
    return args.budget


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
