"""One machine with many GPUs: its topology, and how to serve a model on it.

`topology` is the machine as data, read by `topology_text` or `discover`; `groups` picks GPUs and
their rank order; `models` and `memory` say what fits, `cost` how fast it will be; `plan` chooses;
`environment`, `report` and `plan_json` turn a plan into commands, text and JSON. Planning needs
neither SGLang nor a GPU; torch is imported to size recurrent states and to probe all-reduces.
"""

from __future__ import annotations

from sglang_ddtree.cluster.commands.plan_json import to_json
from sglang_ddtree.cluster.commands.report import plan_report
from sglang_ddtree.cluster.facts.model_facts import model_facts
from sglang_ddtree.cluster.launch.environment import Endpoints
from sglang_ddtree.cluster.machine.topology import Topology
from sglang_ddtree.cluster.machine.topology_text import TopologyTextError, parse_topology
from sglang_ddtree.cluster.planning.cost import Figures
from sglang_ddtree.cluster.planning.plan import Plan, PlanRefused, Request, make_plan

__all__ = [
    "Endpoints",
    "Figures",
    "Plan",
    "PlanRefused",
    "Request",
    "Topology",
    "TopologyTextError",
    "make_plan",
    "model_facts",
    "parse_topology",
    "plan_report",
    "to_json",
]
