"""Why a plan is what it is, in sentences."""

from __future__ import annotations

from collections.abc import Iterable

from sglang_ddtree.cluster.machine.topology import Topology
from sglang_ddtree.cluster.planning.groups import DeviceGroup
from sglang_ddtree.cluster.planning.plan import Option, Plan


def reasons(plan: Plan) -> tuple[str, ...]:
    """Why the chosen option leads and its groups are what they are, in sentences."""
    topology, request, chosen = plan.topology, plan.request, plan.chosen
    others = [option for option in plan.options if option is not chosen]
    found = []
    if request.tp and request.replicas:
        found.append(f"{chosen.label} was asked for")
    elif chosen.step is None:
        found.append(f"{chosen.label}: {chosen.unknown}; nothing ranks it above larger groups")
    else:
        load = "1 request" if request.concurrency == 1 else f"{request.concurrency} requests"
        found.append(
            f"{chosen.label} gives {chosen.tokens_per_second:.0f} tok/s with {load} by the cost "
            "model"
        )
    found += [_rivalry(chosen, other) for other in others if _rivals(chosen, other)]
    if chosen.tp > 1:
        found += [_placement(topology, group) for group in chosen.groups]
    used = {gpu for group in chosen.groups for gpu in group.gpus}
    if idle := [gpu for gpu in topology.indices if gpu not in used]:
        why = "more replicas would have no requests"
        if len(idle) < chosen.tp:
            why = f"too few for TP{chosen.tp}"
        elif request.replicas:
            why = f"{chosen.label} was asked for"
        found.append(f"GPUs {_list(idle)} stay free: {why}")
    return tuple(found)


def _rivals(chosen: Option, other: Option) -> bool:
    """Whether the other option may be faster, by prediction or by its best all-reduces."""
    if chosen.step is None or other.step is None:
        return False
    best = other.tokens_per_second * other.step.total / other.step.low
    return best > chosen.tokens_per_second


def _rivalry(chosen: Option, other: Option) -> str:
    assert other.step is not None
    margin = other.tokens_per_second / chosen.tokens_per_second - 1
    if margin > 0:
        return (
            f"{other.label} is predicted {margin:.0%} faster, closer than the model can tell; the "
            "simpler groups lead"
        )
    return (
        f"{other.label} would lead with all-reduces as fast as the fastest known ones "
        f"({other.step.low:.1f} ms a step): run the probe"
    )


def _placement(topology: Topology, group: DeviceGroup) -> str:
    domains = topology.domains
    names = " and ".join(domains[i].label for i in group.domains)
    if not group.straddles:
        return f"GPUs {_list(group.gpus)} stay inside {names}"
    left = " left" if max(len(domain.gpus) for domain in domains) >= group.tp else ""
    return (
        f"GPUs {_list(group.gpus)} straddle {names}, as no domain has {group.tp} GPUs{left}; this "
        f"rank order crosses least: {group.crossings.ring} times on the ring, "
        f"{group.crossings.island} pairs inside the two islands"
    )


def _list(gpus: Iterable[int]) -> str:
    return ",".join(map(str, gpus))
