"""A plan for machines."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sglang_ddtree.cluster.commands.memory_table import memory_rows
from sglang_ddtree.cluster.launch.environment import (
    Command,
    Endpoints,
    hints,
    root_tuning,
    router_command,
    server_commands,
)
from sglang_ddtree.cluster.machine.cores import format_cores
from sglang_ddtree.cluster.machine.topology import Topology
from sglang_ddtree.cluster.planning.plan import Option, Plan
from sglang_ddtree.cluster.planning.prediction import predict
from sglang_ddtree.cluster.planning.reasons import reasons


def to_json(plan: Plan, endpoints: Endpoints | None = None) -> dict[str, Any]:
    """The plan as JSON values; sizes in bytes, times in milliseconds."""
    router = router_command(plan, endpoints)
    card = min(gpu.memory_bytes or 0 for gpu in plan.topology.gpus)
    assert plan.chosen.load is not None
    return {
        "version": 1,
        "model": plan.model.name,
        "uncertain": list(plan.model.uncertain),
        "budget": plan.budget,
        "concurrency": plan.request.concurrency,
        "context": plan.request.context,
        "acceptance": {
            "tokens_per_step": plan.curve.tokens(plan.budget),
            "measured": plan.curve.measured,
            "source": plan.curve.source,
        },
        "figures": plan.figures.source,
        "topology": _topology_json(plan.topology),
        "chosen": _option_json(plan.chosen),
        "options": [_option_json(option) for option in plan.options],
        "memory": memory_rows(plan.model, plan.chosen.load, card),
        "predictions": [asdict(prediction) for prediction in predict(plan)],
        "reasons": list(reasons(plan)),
        "servers": [_command_json(command) for command in server_commands(plan, endpoints)],
        "router": None if router is None else _command_json(router),
        "hints": list(hints(plan, endpoints)),
        "root_tuning": [
            {"what": advice.what, "why": advice.why, "look": advice.look}
            for advice in root_tuning(plan.topology)
        ],
    }


def _topology_json(topology: Topology) -> dict[str, Any]:
    return {
        "source": topology.source,
        "driver": topology.driver,
        "domain_basis": topology.domain_basis,
        "domains": [
            {
                "label": domain.label,
                "gpus": list(domain.gpus),
                "numa_node": domain.numa_node,
                "cores": format_cores(domain.cores),
            }
            for domain in topology.domains
        ],
        "gpus": [
            {
                "index": gpu.index,
                "name": gpu.name,
                "memory_bytes": gpu.memory_bytes,
                "numa_nodes": list(gpu.numa_nodes),
                "cores": format_cores(gpu.cores),
                "pci_address": gpu.pci_address,
            }
            for gpu in topology.gpus
        ],
        "links": {f"{a}-{b}": str(link) for (a, b), link in sorted(topology.links.items())},
        "nics": [{"name": nic.name, "device": nic.device} for nic in topology.nics],
        "peer_access": topology.peer_access(topology.indices),
        "notes": list(topology.notes),
    }


def _option_json(option: Option) -> dict[str, Any]:
    step = option.step
    return {
        "tp": option.tp,
        "replicas": option.replicas,
        "groups": [
            {
                "gpus": list(group.gpus),
                "domains": list(group.domains),
                "ring_crossings": group.crossings.ring,
                "island_crossings": group.crossings.island,
            }
            for group in option.groups
        ],
        "transport": option.transport,
        "memory_bytes": None
        if option.bill is None
        else {item.label: item.amount for item in option.bill.items},
        "step_ms": None
        if step is None
        else {
            "total": step.total,
            "low": step.low,
            "high": step.high,
            "draft": step.draft,
            "draft_reduces": step.draft_reduces.typical,
            "verify": step.verify,
            "verify_reduces": step.verify_reduces.typical,
            "host": step.host,
            "upper_bound": step.verify_reduces.bound,
        },
        "tokens_per_second": None if step is None else option.tokens_per_second,
        "refusal": option.refusal,
        "unknown": option.unknown,
    }


def _command_json(command: Command) -> dict[str, Any]:
    return {
        "argv": list(command.argv),
        "environment": {s.name: s.value for s in command.settings if s.value is not None},
        "unset": [setting.name for setting in command.settings if setting.value is None],
        "why": {setting.name: setting.why for setting in command.settings},
    }
