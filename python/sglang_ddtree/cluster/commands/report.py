"""A plan for people."""

from __future__ import annotations

from sglang_ddtree.cluster.commands.memory_table import memory_table
from sglang_ddtree.cluster.launch.environment import (
    Endpoints,
    hints,
    root_tuning,
    router_command,
    server_commands,
)
from sglang_ddtree.cluster.machine.cores import format_cores
from sglang_ddtree.cluster.machine.topology import Domain, Topology
from sglang_ddtree.cluster.planning.cost import Figures
from sglang_ddtree.cluster.planning.memory import gb
from sglang_ddtree.cluster.planning.plan import Option, Plan
from sglang_ddtree.cluster.planning.prediction import prediction_table
from sglang_ddtree.cluster.planning.reasons import reasons

FIGURES_OF = "RTX PRO 6000"


def plan_report(plan: Plan, endpoints: Endpoints | None = None) -> str:
    """The plan as text: machine, groups, reasons, alternatives, commands, root-level tuning."""
    sections = [
        ("Machine", picture(plan.topology)),
        ("Groups", _groups(plan)),
        ("Why", [*reasons(plan), *_assumptions(plan)]),
        ("Memory of one rank", _memory(plan.chosen)),
        ("Memory by tensor-parallel size, GB a GPU", _memory_by_size(plan)),
        ("Alternatives", _alternatives(plan)),
        ("Predicted tok/s, all replicas together", prediction_table(plan)),
        ("Commands", _commands(plan, endpoints)),
        ("Left to you", list(hints(plan, endpoints))),
        ("For root, reported and not applied", _tuning(plan)),
    ]
    blocks = []
    for title, lines in sections:
        if lines:
            indented = (f"  {line}".rstrip() for text in lines for line in text.split("\n"))
            blocks.append("\n".join((title, *indented)))
    return "\n\n".join(blocks) + "\n"


def picture(topology: Topology) -> list[str]:
    """One box for each domain, GPUs below one switch in brackets, and the links between."""
    domains = topology.domains
    lines = [_heading(topology)]
    bodies = [_domain_body(topology, domain) for domain in domains]
    width = max(len(body) for body in bodies)
    for i, (domain, body) in enumerate(zip(domains, bodies, strict=True)):
        if i:
            lines.append(f"  {_links(topology, domains[i - 1].gpus, domain.gpus)}")
        cores = f"  cores {format_cores(domain.cores)}" if domain.cores else ""
        lines += [f"+-- {domain.label}{cores}", f"|  {body:<{width}}  {_inner(topology, domain)}"]
    lines += [f"note: {note}" for note in topology.notes]
    return [line.rstrip() for line in lines]


def _heading(topology: Topology) -> str:
    names = sorted({gpu.name for gpu in topology.gpus if gpu.name})
    memory = sorted({gpu.memory_bytes for gpu in topology.gpus if gpu.memory_bytes})
    parts = [f"{len(topology.gpus)} x {' / '.join(names) or 'GPU'}"]
    parts += [f"{' / '.join(gb(size) for size in memory)} GB"] if memory else []
    parts += [f"driver {topology.driver}"] if topology.driver else []
    access = topology.peer_access(topology.indices)
    if access is not None and len(topology.gpus) > 1:
        parts.append("peer access" if access else "peer access not everywhere")
    parts += [f"{len(topology.nics)} NICs"] if topology.nics else []
    return ", ".join(parts)


def _domain_body(topology: Topology, domain: Domain) -> str:
    left, parts = list(domain.gpus), []
    for group in topology.switch_groups:
        members = [gpu for gpu in group if gpu in left]
        if len(members) > 1:
            parts.append((members[0], "[" + " ".join(f"GPU{gpu}" for gpu in members) + "]"))
            left = [gpu for gpu in left if gpu not in members]
    parts += [(gpu, f"GPU{gpu}") for gpu in left]
    return "  ".join(text for _, text in sorted(parts))


def _inner(topology: Topology, domain: Domain) -> str:
    return _links(topology, domain.gpus, domain.gpus) if len(domain.gpus) > 1 else ""


def _links(topology: Topology, left: tuple[int, ...], right: tuple[int, ...]) -> str:
    links = {topology.link(a, b) for a in left for b in right if a != b}
    ordered = sorted(links, key=lambda link: (link.kind, link.lanes))
    return f"({', '.join(map(str, ordered))})"


def _groups(plan: Plan) -> list[str]:
    domains = plan.topology.domains
    lines = [
        f"{plan.model.name}, budget {plan.budget}: {plan.chosen.label}, {plan.chosen.transport}"
    ]
    for i, group in enumerate(plan.chosen.groups):
        where = " + ".join(domains[position].label for position in group.domains)
        lines.append(f"replica {i}: GPUs {','.join(map(str, group.gpus))} in rank order, {where}")
    return lines


def _assumptions(plan: Plan) -> list[str]:
    curve = plan.curve
    kind = "measured" if curve.measured else "assumed"
    lines = [
        f"{curve.tokens(plan.budget):.2f} tokens a step ({kind}): {curve.source}",
        f"times from {plan.figures.source}",
    ]
    other = {gpu.name for gpu in plan.topology.gpus if gpu.name and FIGURES_OF not in gpu.name}
    if other and plan.figures == Figures():
        lines.append(
            f"these times are of an {FIGURES_OF}, not of {', '.join(sorted(other))}: probe"
        )
    if plan.model.uncertain:
        lines.append(f"uncertain facts of {plan.model.name}: {', '.join(plan.model.uncertain)}")
    return lines


def _memory(option: Option) -> list[str]:
    assert option.bill is not None
    lines = [
        f"{item.label:<12} {gb(item.amount):>7} GB  {item.arithmetic}" for item in option.bill.items
    ]
    return [*lines, f"{'total':<12} {gb(option.bill.total):>7} GB"]


def _memory_by_size(plan: Plan) -> list[str]:
    """For hybrid targets, where the way of verifying decides what fits; at the chosen load."""
    if plan.model.recurrent is None or plan.chosen.load is None:
        return []
    card = min(gpu.memory_bytes or 0 for gpu in plan.topology.gpus)
    lines = [f"running requests of a replica: {plan.chosen.load.batch}"]
    return [*lines, *memory_table(plan.model, plan.chosen.load, card)]


def _alternatives(plan: Plan) -> list[str]:
    lines = [f"{'':12}{'step ms':>9}{'range':>15}{'tok/s':>8}  draft + verify + reduces + host"]
    for option in plan.options:
        mark = "*" if option is plan.chosen else " "
        head = f"{mark} {option.label:<10}"
        if option.refusal is not None:
            lines.append(f"{head}  no: {option.refusal}")
        elif option.step is None:
            lines.append(f"{head}  fits; {option.unknown}")
        else:
            step = option.step
            reduces = step.draft_reduces.typical + step.verify_reduces.typical
            bound = " (upper bound)" if step.verify_reduces.bound else ""
            lines.append(
                f"{head}{step.total:>9.1f}{f'{step.low:.1f}-{step.high:.1f}':>15}"
                f"{option.tokens_per_second:>8.0f}  {step.draft:.1f} + {step.verify:.1f} + "
                f"{reduces:.1f} {option.transport}{bound} + {step.host:.1f}"
            )
    return lines


def _commands(plan: Plan, endpoints: Endpoints | None) -> list[str]:
    commands = list(server_commands(plan, endpoints))
    router = router_command(plan, endpoints)
    return [command.shell() for command in [*commands, *([router] if router else [])]]


def _tuning(plan: Plan) -> list[str]:
    return [
        f"{advice.what}: {advice.why}\n    look: {advice.look}"
        for advice in root_tuning(plan.topology)
    ]
