"""Predicted time of one decode step: draft + verify + all-reduces + host.

    verify    = max(weights read / bandwidth, multiplications / throughput)
                + attention over the prefix + recurrent states + layers x launch overhead
    reduces   = (2 x layers + 1) all-reduces of nodes x batch x hidden x 2 bytes
    draft     = the drafter's weights and the target's head, once, and its own all-reduces

A mixture of experts reads the experts that its nodes touch, so its verify grows with the tree long
before arithmetic does. The model has one fitted constant, `Constants.layer_overhead_us`; all other
ones are measurements or stated assumptions. What it reproduces, and how closely, is in
test/unit/test_cluster_cost.py: single figures within 20 %, most within 10 %.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from sglang_ddtree.cluster.facts.allreduce import AllReduceFigures, Latency, read_tables
from sglang_ddtree.cluster.facts.models import ModelFacts
from sglang_ddtree.cluster.planning.memory import Load


@dataclass(frozen=True)
class Constants:
    """One GPU and its host; the defaults are an RTX PRO 6000 Blackwell.

    bandwidth: achieved bytes/s, the best of 1,376 to 1,491 GB/s of p2pBandwidthLatencyTest.
    latent_bandwidth: bytes/s at which MLA decode streams the latent cache, from K2.6 at TP8:
        128k tokens add 10.9 ms.
    throughput: achieved bf16 multiply-add FLOP/s, an assumption: 80 % of a derived 500 TFLOPS.
    layer_overhead_us: launches and small kernels of one layer, fitted to K2.6 at TP8 without
        speculation, 92.4 tok/s.
    host_us: host work that overlap scheduling does not hide, an assumption.
    """

    bandwidth: float = 1.491e12
    latent_bandwidth: float = 416e9
    throughput: float = 400e12
    layer_overhead_us: float = 50.0
    host_us: float = 500.0


@dataclass(frozen=True)
class MeasuredStep:
    """Milliseconds of one decode step of a model on `tp` ranks, as a probe measured it.

    batch: requests at a time. budget: nodes under the root of each, 0 for plain decoding. context:
    mean tokens of a request.
    """

    model: str
    tp: int
    batch: int
    budget: int
    context: int
    ms: float


@dataclass(frozen=True)
class Figures:
    """What a prediction rests on. steps: measured ones, to which predictions are scaled."""

    constants: Constants = field(default_factory=Constants)
    allreduce: AllReduceFigures = field(default_factory=AllReduceFigures)
    steps: tuple[MeasuredStep, ...] = ()
    source: str = "published figures, one RTX PRO 6000 box or another"

    def with_probe(self, probe: Mapping[str, Any], source: str = "probe") -> Figures:
        """These figures with a probe's: its ``allreduce`` tables, ``steps`` and ``constants``.

        Raises ValueError for an entry that is not of the form or a constant of another name.
        """
        known = {item.name for item in fields(Constants)}
        given = {str(key): float(value) for key, value in probe.get("constants", {}).items()}
        if unknown := sorted(set(given) - known):
            raise ValueError(f"{source}: unknown constants {unknown}, known are {sorted(known)}")
        return Figures(
            replace(self.constants, **given),
            self.allreduce.measured(read_tables(probe, source)),
            tuple(_read_step(i, step, source) for i, step in enumerate(probe.get("steps", ()))),
            source,
        )


def _read_step(index: int, entry: Mapping[str, Any], source: str) -> MeasuredStep:
    try:
        return MeasuredStep(
            str(entry["model"]),
            int(entry["tp"]),
            int(entry["batch"]),
            int(entry["budget"]),
            int(entry["context"]),
            float(entry["ms"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{source}: steps[{index}]: {error!r}") from error


@dataclass(frozen=True)
class StepTime:
    """One step in milliseconds; all-reduces as `Latency`, so that the total has a range too."""

    draft: float
    draft_reduces: Latency
    verify: float
    verify_reduces: Latency
    host: float

    @property
    def total(self) -> float:
        """Step time with typical all-reduces."""
        return self._fixed + self.draft_reduces.typical + self.verify_reduces.typical

    @property
    def low(self) -> float:
        """Step time with the fastest all-reduces of all tables."""
        return self._fixed + self.draft_reduces.low + self.verify_reduces.low

    @property
    def high(self) -> float:
        """Step time with the slowest all-reduces of all tables."""
        return self._fixed + self.draft_reduces.high + self.verify_reduces.high

    def scaled(self, factor: float) -> StepTime:
        """Every part times `factor`."""
        return StepTime(
            self.draft * factor,
            self.draft_reduces.scaled(factor),
            self.verify * factor,
            self.verify_reduces.scaled(factor),
            self.host * factor,
        )

    @property
    def _fixed(self) -> float:
        return self.draft + self.verify + self.host


@dataclass(frozen=True)
class Placement:
    """How a replica is spread: ranks, whether they cross sockets, and how they all-reduce."""

    tp: int
    crosses: bool = False
    transport: str = "nccl"


def step_time(
    model: ModelFacts, place: Placement, load: Load, figures: Figures | None = None
) -> StepTime:
    """Step time of one replica, scaled to the measured steps of this model and size if there are.

    Raises LookupError without all-reduce figures for the group.
    """
    figures = figures or Figures()
    predicted = _predicted_step(model, place, load, figures)
    ratios = [
        step.ms
        / _predicted_step(model, place, Load(step.batch, step.context, step.budget), figures).total
        for step in figures.steps
        if (step.model, step.tp) == (model.name, place.tp)
    ]
    return predicted.scaled(statistics.median(ratios)) if ratios else predicted


def _predicted_step(model: ModelFacts, place: Placement, load: Load, figures: Figures) -> StepTime:
    draft, draft_reduces = 0.0, Latency(0.0, 0.0, 0.0)
    if load.budget:
        draft = _draft_ms(model, place, load, figures.constants)
        draft_reduces = _reduces(
            model, 2 * model.drafter.layers + 1, model.drafter.block, place, load, figures
        )
    return StepTime(
        draft=draft,
        draft_reduces=draft_reduces,
        verify=verify_ms(model, place.tp, load, figures.constants),
        verify_reduces=_reduces(model, 2 * model.layers + 1, load.nodes, place, load, figures),
        host=figures.constants.host_us / 1e3,
    )


def verify_ms(model: ModelFacts, tp: int, load: Load, constants: Constants | None = None) -> float:
    """Milliseconds of the target's forward over all nodes, without its all-reduces."""
    constants = constants or Constants()
    tokens = load.batch * load.nodes
    dense = model.weight_bytes - model.expert_bytes - model.embedding_bytes
    read = (dense - model.replicated_bytes) / tp + model.replicated_bytes
    if model.experts:
        read += model.expert_bytes / tp * model.experts_touched(tokens) / model.experts
    matrices = max(
        read / constants.bandwidth, 2 * model.active_params * tokens / tp / constants.throughput
    )
    seconds = matrices + _attention_s(model, tp, load, constants)
    seconds += _recurrent_s(model, tp, load, constants)
    return seconds * 1e3 + model.layers * constants.layer_overhead_us / 1e3


def _attention_s(model: ModelFacts, tp: int, load: Load, constants: Constants) -> float:
    """Reading the prefix once for all nodes of a request, or the arithmetic on it if longer."""
    seconds = 0.0
    for kv in model.kv:
        kept = kv.kept(load.context) * load.batch
        rate = constants.latent_bandwidth if kv.latent else constants.bandwidth
        read = kv.row_bytes(tp, load.kv_element_bytes) * kept / rate
        rows = model.heads / tp * load.nodes
        flops = 2 * kv.score * rows * kept * kv.layers
        seconds += max(read, flops / constants.throughput)
    return seconds


def _recurrent_s(model: ModelFacts, tp: int, load: Load, constants: Constants) -> float:
    """Committed states read and written, and a snapshot written and a parent read for each node."""
    if model.recurrent is None:
        return 0.0
    moved = 2 * model.recurrent.state_bytes
    if load.budget and load.recurrent_mode == "snapshot":
        moved += 2 * load.nodes * model.recurrent.state_bytes
    elif load.budget:
        moved += 2 * load.nodes * model.recurrent.stash_bytes(1)
    return load.batch * moved / tp / constants.bandwidth


def _draft_ms(model: ModelFacts, place: Placement, load: Load, constants: Constants) -> float:
    read = (model.drafter.weight_bytes + model.head_bytes) / place.tp
    tokens = load.batch * model.drafter.block
    # One multiply-add for each 16-bit weight and token.
    flops = read * tokens
    seconds = max(read / constants.bandwidth, flops / constants.throughput)
    cached = load.batch * load.context * model.drafter.kv_row_bytes(place.tp)
    seconds += cached / constants.bandwidth
    return seconds * 1e3 + model.drafter.layers * constants.layer_overhead_us / 1e3


def _reduces(
    model: ModelFacts, count: int, nodes: int, place: Placement, load: Load, figures: Figures
) -> Latency:
    """`count` all-reduces of one hidden state for each node, in milliseconds."""
    if place.tp == 1:
        return Latency(0.0, 0.0, 0.0)
    size = nodes * load.batch * model.hidden * 2
    one = figures.allreduce.latency(place.transport, place.tp, place.crosses, size)
    return one.scaled(count / 1e3)
