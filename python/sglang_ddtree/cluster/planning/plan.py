"""Chooses device groups: every tensor-parallel size that fits, the fastest of them first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sglang_ddtree.cluster.facts.acceptance import AcceptanceCurve, default_curve
from sglang_ddtree.cluster.facts.allreduce import NCCL
from sglang_ddtree.cluster.facts.models import ModelFacts
from sglang_ddtree.cluster.facts.transport import default_transport
from sglang_ddtree.cluster.machine.topology import Topology
from sglang_ddtree.cluster.planning.cost import Figures, Placement, StepTime, step_time
from sglang_ddtree.cluster.planning.groups import DeviceGroup, form_groups
from sglang_ddtree.cluster.planning.memory import Load, MemoryBill, memory_bill
from sglang_ddtree.recurrent_mode import DEFAULT_RECURRENT_MODE, RecurrentMode

TP_SIZES = (1, 2, 4, 8, 16)
# Predictions closer than this are equal, and the plan with the simpler groups is taken.
TIE = 0.05


class PlanRefused(Exception):
    """No group can serve the model; the message has the arithmetic of every one considered."""


@dataclass(frozen=True)
class Request:
    """What to plan for.

    concurrency: requests at a time, over all replicas. context: tokens of each. budget: nodes
    under the root, the drafter's block - 1 by default, 0 for plain decoding. tp, replicas: fixed
    by the user, or chosen. transport: `allreduce` name, or chosen. deterministic: whether servers
    run with deterministic inference. curve: tokens a step, by default the target's own. nodes:
    machines that one replica spans; `tp` counts the GPUs of one of them.
    """

    concurrency: int = 8
    context: int = 8192
    budget: int | None = None
    tp: int | None = None
    replicas: int | None = None
    transport: str | None = None
    recurrent_mode: RecurrentMode = DEFAULT_RECURRENT_MODE
    kv_element_bytes: int = 2
    deterministic: bool = False
    curve: AcceptanceCurve | None = None
    nodes: int = 1

    def __post_init__(self) -> None:
        for name in ("concurrency", "context", "tp", "replicas", "nodes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be positive, got {value}")
        if self.budget is not None and self.budget < 0:
            raise ValueError(f"budget must not be negative, got {self.budget}")


@dataclass(frozen=True)
class Option:
    """One way to use the machine; `refusal` says why it is none, `step` is None without figures.

    tp: ranks on each of `nodes` machines.
    tokens_per_second: over all replicas, at the planned concurrency.
    """

    tp: int
    replicas: int
    groups: tuple[DeviceGroup, ...] = ()
    transport: str = NCCL
    load: Load | None = None
    bill: MemoryBill | None = None
    step: StepTime | None = None
    tokens_per_second: float = 0.0
    refusal: str | None = None
    unknown: str | None = None
    nodes: int = 1

    @property
    def straddling(self) -> int:
        """How many groups cross domains."""
        return sum(group.straddles for group in self.groups)

    @property
    def label(self) -> str:
        """Such as ``2 x TP4``."""
        label = f"{self.replicas} x TP{self.tp * self.nodes}"
        return label if self.nodes == 1 else f"{label} over {self.nodes} machines"


@dataclass(frozen=True)
class Plan:
    """The chosen option and all others, best first, refused ones last."""

    topology: Topology
    model: ModelFacts
    request: Request
    chosen: Option
    options: tuple[Option, ...]
    figures: Figures

    @property
    def budget(self) -> int:
        """Resolved budget."""
        return resolved_budget(self.model, self.request)

    @property
    def curve(self) -> AcceptanceCurve:
        """Tokens a step that the prediction assumes."""
        return self.request.curve or default_curve(self.model)


def resolved_budget(model: ModelFacts, request: Request) -> int:
    """The asked-for budget, or as many nodes as the drafter's chain has."""
    return model.drafter.block - 1 if request.budget is None else request.budget


def make_plan(
    topology: Topology, model: ModelFacts, request: Request, figures: Figures | None = None
) -> Plan:
    """The plan for a machine, a target and a request.

    Raises ValueError where the memory of a GPU is unknown or the request has no sense, and
    PlanRefused with the arithmetic where nothing fits.
    """
    figures = figures or Figures()
    _check(topology, model, request)
    options = [
        evaluate(topology, model, request, figures, tp, replicas)
        for tp, replicas in shapes(topology, request)
    ]
    able = [option for option in options if option.refusal is None]
    if not able:
        lines = [f"{option.label}: {option.refusal}" for option in options]
        raise PlanRefused(
            f"{model.name} cannot be served with {request.concurrency} requests of "
            f"{request.context} tokens\n" + "\n".join(lines)
        )
    ranked = rank(able)
    refused = [option for option in options if option.refusal is not None]
    return Plan(
        topology,
        model,
        request,
        chosen=ranked[0],
        options=(*ranked, *refused),
        figures=figures,
    )


def rank(options: Iterable[Option]) -> list[Option]:
    """Options best first: by predicted tokens a second, without figures last.

    Among those within `TIE` of the fastest, the one with fewer groups across domains, then with
    fewer ranks a group leads: a prediction is no better than its constants, and a group inside a
    domain has less to go wrong.
    """
    ranked = sorted(options, key=lambda option: (option.step is None, -option.tokens_per_second))
    fastest = ranked[0].tokens_per_second
    close = [option for option in ranked if option.tokens_per_second >= (1 - TIE) * fastest]
    lead = min(close, key=lambda option: (option.straddling, option.tp))
    return [lead, *(option for option in ranked if option is not lead)]


def _check(topology: Topology, model: ModelFacts, request: Request) -> None:
    unknown = [gpu.index for gpu in topology.gpus if gpu.memory_bytes is None]
    if unknown:
        raise ValueError(
            f"the memory of GPU {', '.join(map(str, unknown))} is not known from "
            f"{topology.source}: give it"
        )
    if request.context > model.context_limit:
        raise ValueError(
            f"{request.context} tokens are beyond the {model.context_limit} of {model.name}"
        )


def shapes(topology: Topology, request: Request) -> list[tuple[int, int]]:
    """Tensor-parallel sizes with the replicas to try: as many as fit and have a request each."""
    available = len(topology.gpus)
    sizes = (request.tp,) if request.tp else [tp for tp in TP_SIZES if tp <= available]
    if request.nodes > 1:
        return [(tp, 1) for tp in sizes]
    return [
        (tp, request.replicas or max(1, min(available // tp, request.concurrency))) for tp in sizes
    ]


def request_load(model: ModelFacts, request: Request, replicas: int) -> Load:
    """What each of `replicas` servers has to hold."""
    return Load(
        batch=-(-request.concurrency // replicas),
        context=request.context,
        budget=resolved_budget(model, request),
        recurrent_mode=request.recurrent_mode,
        kv_element_bytes=request.kv_element_bytes,
    )


def evaluate(
    topology: Topology,
    model: ModelFacts,
    request: Request,
    figures: Figures,
    tp: int,
    replicas: int,
    groups: tuple[DeviceGroup, ...] | None = None,
) -> Option:
    """One shape; `groups` are those that it has, where they are known already."""
    option, ranks = Option(tp, replicas, nodes=request.nodes), tp * request.nodes
    obstacle = model.tp_obstacle(ranks)
    if obstacle is not None:
        return replace(option, refusal=obstacle)
    try:
        groups = groups or form_groups(topology, tp, replicas)
    except ValueError as error:
        return replace(option, refusal=str(error))
    load = request_load(model, request, replicas)
    bill = memory_bill(model, ranks, load)
    option = replace(option, groups=groups, load=load, bill=bill)
    card = min(topology.gpu(gpu).memory_bytes or 0 for group in groups for gpu in group.gpus)
    if bill.total > card:
        fitting = largest_batch(model, ranks, load, card)
        advice = f"; {fitting} requests a replica would fit" if fitting else ""
        return replace(option, refusal=bill.explain(card) + advice)
    return _predict(option, topology, model, request, figures)


def largest_batch(model: ModelFacts, tp: int, load: Load, card: int) -> int:
    """The most running requests, up to `load.batch`, whose bill is within `card` bytes."""
    low, high = 0, load.batch
    while low < high:
        middle = (low + high + 1) // 2
        if memory_bill(model, tp, replace(load, batch=middle)).total <= card:
            low = middle
        else:
            high = middle - 1
    return low


def _predict(
    option: Option, topology: Topology, model: ModelFacts, request: Request, figures: Figures
) -> Option:
    """The option with its step time, that of its slowest group."""
    assert option.load is not None
    curve = request.curve or default_curve(model)
    slow = max(option.groups, key=lambda group: group.straddles)
    transport = request.transport or (
        NCCL
        if option.nodes > 1
        else default_transport(topology, slow.gpus, model, request.deterministic)
    )
    ranks = option.tp * option.nodes
    place = Placement(ranks, slow.straddles or option.nodes > 1, transport)
    try:
        step = step_time(model, place, option.load, figures)
    except LookupError as error:
        return replace(option, transport=transport, unknown=str(error))
    rate = request.concurrency * curve.tokens(option.load.budget) / step.total * 1e3
    return replace(option, transport=transport, step=step, tokens_per_second=rate)
