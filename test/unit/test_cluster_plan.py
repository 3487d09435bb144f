"""Plans: what is chosen, what is refused and with which arithmetic, and what a user gets to run."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_ddtree.cluster import (
    Endpoints,
    Figures,
    Plan,
    PlanRefused,
    Request,
    make_plan,
    plan_report,
    to_json,
)
from sglang_ddtree.cluster.facts.allreduce import NCCL, NCCL_TUNED, PCIE_IPC
from sglang_ddtree.cluster.facts.model_facts import KIMI_K2, MODELS, QWEN3_8B, QWEN36_27B
from sglang_ddtree.cluster.launch.environment import (
    DRAFTER_PATH,
    Command,
    hints,
    root_tuning,
    router_command,
    server_commands,
)
from sglang_ddtree.cluster.machine.topology import Topology
from sglang_ddtree.cluster.planning.memory import WORKSPACE_BYTES, Load, memory_bill
from sglang_ddtree.cluster.planning.plan import TIE, largest_batch
from sglang_ddtree.cluster.planning.reasons import reasons
from unit.topology_files import NAMES, RTX_PRO_6000, machines, read

TWO_SOCKETS = read("two_sockets_switches_ansi").with_memory(RTX_PRO_6000)


def plan_for(model: str, topology: Topology = TWO_SOCKETS, **request: object) -> Plan:
    return make_plan(topology, MODELS[model], Request(**request))  # type: ignore[arg-type]


def option(command: Command, name: str) -> list[str]:
    """The values of an option in a command line."""
    start = command.argv.index(name) + 1
    values = []
    for word in command.argv[start:]:
        if word.startswith("--"):
            break
        values.append(word)
    return values


def variables(command: Command) -> dict[str, str | None]:
    return {setting.name: setting.value for setting in command.settings}


def test_eight_cards_serve_qwen_as_two_replicas_of_four() -> None:
    plan = plan_for("qwen3.6-27b")
    assert plan.chosen.label == "2 x TP4"
    assert [group.gpus for group in plan.chosen.groups] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [o.label for o in plan.options if o.refusal] == []
    slowest = min(plan.options, key=lambda o: o.tokens_per_second)
    assert slowest.label == "1 x TP8"
    assert any("run the probe" in reason for reason in reasons(plan))


def test_one_request_stays_inside_a_socket() -> None:
    plan = plan_for("qwen3.6-27b", concurrency=1)
    assert plan.chosen.label == "1 x TP4"
    assert not plan.chosen.groups[0].straddles
    assert "GPUs 4,5,6,7 stay free: more replicas would have no requests" in reasons(plan)
    asked = plan_for("qwen3.6-27b", tp=2, replicas=1)
    assert "GPUs 2,3,4,5,6,7 stay free: 1 x TP2 was asked for" in reasons(asked)
    uneven = plan_for("qwen3-8b", read("uneven_five_and_three").with_memory(RTX_PRO_6000), tp=8)
    assert not [reason for reason in reasons(uneven) if "stay free" in reason]


def test_kimi_takes_all_eight_cards_over_pcie_ipc() -> None:
    plan = plan_for("kimi-k2.6", concurrency=1)
    assert (plan.chosen.label, plan.chosen.transport) == ("1 x TP8", PCIE_IPC)
    refused = {o.tp: o.refusal for o in plan.options if o.refusal}
    assert set(refused) == {1, 2, 4}
    # 592.9 GB of sharded weights over four ranks and 1.8 on each: 150.1, against 102.6.
    assert refused[4] is not None
    assert refused[4].startswith("weights 150.1 + latent KV ")
    assert refused[4].endswith("> 102.6 GB a card")


def test_refusal_of_everything_has_the_arithmetic_of_each() -> None:
    with pytest.raises(PlanRefused) as raised:
        plan_for("kimi-k2.6", topology=read("four_on_one_socket").with_memory(RTX_PRO_6000))
    lines = str(raised.value).splitlines()
    assert len(lines) == 4
    assert all("weights" in line and "GB a card" in line for line in lines[1:])


def test_refusal_says_how_many_requests_would_fit() -> None:
    with pytest.raises(PlanRefused, match=r"; (\d+) requests a replica would fit") as raised:
        plan_for("kimi-k2.6", concurrency=64, context=65_536, tp=8)
    match = re.search(r"(\d+) requests a replica", str(raised.value))
    assert match is not None
    fitting = int(match[1])
    plan = plan_for("kimi-k2.6", concurrency=fitting, context=65_536, tp=8)
    assert plan.chosen.bill is not None
    assert plan.chosen.bill.total <= RTX_PRO_6000
    with pytest.raises(PlanRefused):
        plan_for("kimi-k2.6", concurrency=fitting + 1, context=65_536, tp=8)


def test_snapshots_refuse_what_a_stash_fits() -> None:
    """33 nodes x 5 GB: one request's tree states at budget 32 are 4.98 GB, for 12 slots 60."""
    request = {"tp": 1, "replicas": 1, "concurrency": 11, "budget": 32}
    with pytest.raises(PlanRefused, match="tree states 61"):
        plan_for("qwen3.6-27b", recurrent_mode="snapshot", **request)
    assert plan_for("qwen3.6-27b", recurrent_mode="stash", **request).chosen.tp == 1


def test_bill_of_a_dense_model_by_hand() -> None:
    bill = memory_bill(QWEN3_8B, 4, Load(batch=3, context=1000, budget=7))
    row = 36 * 2 * 2 * 128 * 2
    assert {item.label: item.amount for item in bill.items} == {
        "weights": 16_380_000_000 // 4,
        "KV": 3 * 1000 * row,
        "tree rows": 3 * (2 * 8) * row,
        "drafter": 2_100_000_000 // 4,
        "drafter KV": 3 * (1000 + 2 * 8) * 5 * 2 * 2 * 128 * 2,
        # Per node: fp32 logits of the vocabulary and five captured layers' hidden states.
        "graphs": 3 * 8 * (4 * 151_936 + 5 * 2 * 4096),
        "workspace": WORKSPACE_BYTES,
    }


def test_sliding_layers_keep_their_window_and_few_heads_are_shared() -> None:
    gemma = MODELS["gemma-4-31b"]
    short, long = (
        memory_bill(gemma, 8, Load(1, context, 0)).items[1].amount for context in (8192, 16_384)
    )
    # Ten global layers of 4 heads, one a rank at TP8: 2 x 512 elements of 2 bytes a token.
    assert long - short == 8192 * 10 * 2 * 512 * 2


@given(st.integers(1, 200), st.integers(1, 64), st.integers(0, 63))
@settings(max_examples=40, deadline=None)
def test_largest_batch_fits_and_one_more_does_not(batch: int, kilotokens: int, budget: int) -> None:
    load = Load(batch, kilotokens * 1024, budget)
    most = largest_batch(QWEN36_27B, 2, load, RTX_PRO_6000)
    assert 0 <= most <= batch
    if most:
        assert memory_bill(QWEN36_27B, 2, replace(load, batch=most)).total <= RTX_PRO_6000
    if most < batch:
        assert memory_bill(QWEN36_27B, 2, replace(load, batch=most + 1)).total > RTX_PRO_6000


def fits(name: str, gpus: int, tp: int, concurrency: int, budget: int | None) -> bool:
    """Whether as many replicas of `tp` ranks as there is room and use for hold their requests."""
    if tp > gpus or MODELS[name].tp_obstacle(tp):
        return False
    batch = math.ceil(concurrency / min(gpus // tp, concurrency))
    load = Load(batch, 8192, MODELS[name].drafter.block - 1 if budget is None else budget)
    return memory_bill(MODELS[name], tp, load).total <= RTX_PRO_6000


@given(
    machines(),
    st.sampled_from(sorted(MODELS)),
    st.integers(1, 40),
    st.sampled_from([None, 0, 7, 31]),
)
@settings(max_examples=60, deadline=None)
def test_plans_of_any_machine_hold_together(
    topology: Topology, model: str, concurrency: int, budget: int | None
) -> None:
    topology = topology.with_memory(RTX_PRO_6000)
    request = {"topology": topology, "concurrency": concurrency, "budget": budget}
    if not any(fits(model, len(topology.gpus), tp, concurrency, budget) for tp in (1, 2, 4, 8, 16)):
        with pytest.raises(PlanRefused):
            plan_for(model, **request)
        return
    plan = plan_for(model, **request)
    used = [gpu for group in plan.chosen.groups for gpu in group.gpus]
    assert len(set(used)) == len(used)
    able = [o for o in plan.options if o.refusal is None]
    assert plan.chosen is able[0]
    fastest = max(o.tokens_per_second for o in able)
    assert plan.chosen.tokens_per_second >= (1 - TIE) * fastest
    for o in able:
        assert o.bill is not None
        assert o.bill.total <= RTX_PRO_6000
    commands = server_commands(plan)
    masks = [variables(command)["CUDA_VISIBLE_DEVICES"] for command in commands]
    assert [int(gpu) for mask in masks for gpu in str(mask).split(",")] == used
    assert json.loads(json.dumps(to_json(plan)))["chosen"]["tp"] == plan.chosen.tp
    assert plan.chosen.label in plan_report(plan)


def test_heads_limit_tensor_parallelism() -> None:
    topology = read("sixteen_two_sockets").with_memory(RTX_PRO_6000)
    plan = plan_for("qwen3.6-27b", topology=topology)
    refused = {o.tp: o.refusal for o in plan.options if o.refusal}
    assert refused == {16: "24 attention heads do not divide by 16"}


def test_nvlink_machines_are_not_predicted_from_pcie_tables() -> None:
    topology = read("nvswitch").with_memory(80 << 30)
    plan = plan_for("qwen3.6-27b", topology=topology, tp=8)
    assert plan.chosen.step is None
    assert "nvlink over 8 ranks" in plan_report(plan)
    assert "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE" not in variables(server_commands(plan)[0])
    assert root_tuning(topology) == ()


def test_a_probe_can_turn_the_choice() -> None:
    table = {"transport": NCCL, "ranks": 8, "crosses": True, "points": [[1, 5], [1_000_000, 20]]}
    figures = Figures().with_probe({"allreduce": [table]}, "probe.json")
    plan = make_plan(TWO_SOCKETS, QWEN36_27B, Request(concurrency=1), figures)
    assert plan.chosen.label == "1 x TP8"
    assert "times from probe.json" in plan_report(plan)


def test_memory_must_be_known() -> None:
    with pytest.raises(ValueError, match=r"memory of GPU 0, .* two_sockets_direct\.txt: give it"):
        plan_for("qwen3-8b", topology=read("two_sockets_direct"))


@pytest.mark.parametrize(
    ("request_fields", "words"),
    [
        ({"concurrency": 0}, "concurrency must be positive"),
        ({"tp": -4}, "tp must be positive"),
        ({"budget": -1}, "budget must not be negative"),
        ({"context": 50_000}, "beyond the 40960"),
    ],
)
def test_requests_without_sense(request_fields: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan_for("qwen3-8b", **request_fields)


def test_asking_for_more_groups_than_gpus() -> None:
    with pytest.raises(PlanRefused, match="3 x TP4 needs 12 GPUs, the machine has 8"):
        plan_for("qwen3-8b", tp=4, replicas=3)


def test_commands_of_two_replicas() -> None:
    plan = plan_for("qwen3.6-27b", budget=31, tp=4)
    first, second = server_commands(plan)
    assert option(first, "--model-path") == ["Qwen/Qwen3.6-27B"]
    assert option(first, "--speculative-draft-model-path") == ["z-lab/Qwen3.6-27B-DFlash"]
    assert option(first, "--speculative-ddtree-budget") == ["31"]
    assert option(first, "--tp-size") == ["4"]
    assert option(second, "--numa-node") == ["1"] * 4
    assert option(first, "--max-running-requests") == ["4"]
    environment = variables(second)
    assert environment["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environment["NCCL_P2P_LEVEL"] == "SYS"
    assert environment["NCCL_GRAPH_FILE"] is None
    router = router_command(plan)
    assert router is not None
    assert option(router, "--policy") == ["cache_aware"]
    ports = [option(command, "--port")[0] for command in (first, second)]
    assert option(router, "--worker-urls") == [f"http://127.0.0.1:{port}" for port in ports]
    assert option(router, "--port") == ["30000"]
    assert len({*ports, "30000"}) == 3


def test_commands_of_one_group_over_both_sockets() -> None:
    plan = plan_for("kimi-k2.6", concurrency=1, context=65_536)
    (command,) = server_commands(plan, Endpoints(draft_path="/drafter"))
    assert option(command, "--numa-node") == list("00001111")
    assert option(command, "--speculative-draft-model-path") == ["/drafter"]
    assert option(command, "--port") == ["30000"]
    assert variables(command)["SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"] == "1"
    assert router_command(plan) is None
    assert any("--dcp-size 8" in hint for hint in hints(plan))
    assert any(DRAFTER_PATH in hint for hint in hints(plan))
    assert not any(DRAFTER_PATH in hint for hint in hints(plan, Endpoints(draft_path="/drafter")))


def test_plain_decoding_loads_no_drafter() -> None:
    (command,) = server_commands(plan_for("qwen3-8b", concurrency=1, budget=0, tp=1))
    assert not [word for word in command.argv if word.startswith("--speculative")]
    assert set(variables(command)) == {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"}


def test_ranks_are_bound_only_where_their_node_is_known() -> None:
    topology = read("vm_phb_no_affinity").with_memory(RTX_PRO_6000)
    plan = plan_for("qwen3-8b", topology=topology, tp=4)
    assert "--numa-node" not in server_commands(plan)[0].argv
    assert any(hint.startswith("no --numa-node") for hint in hints(plan))


def test_deterministic_inference_keeps_pcie_ipc_off() -> None:
    plan = plan_for("kimi-k2.6", concurrency=1, deterministic=True)
    (command,) = server_commands(plan)
    assert plan.chosen.transport == NCCL
    assert "--enable-deterministic-inference" in command.argv
    assert "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE" not in variables(command)
    assert any("deterministic" in hint for hint in hints(plan))


def test_a_graph_file_survives_only_for_eight_tuned_ranks() -> None:
    tuned = plan_for("kimi-k2.6", concurrency=1, transport=NCCL_TUNED)
    assert "NCCL_GRAPH_FILE" not in variables(server_commands(tuned)[0])


def test_several_machines_get_one_command_each() -> None:
    plan = make_plan(TWO_SOCKETS, KIMI_K2, Request(concurrency=1, tp=8))
    endpoints = Endpoints(nodes=2, dist_init_addr="10.0.0.1:5000")
    first, second = server_commands(plan, endpoints)
    assert option(first, "--tp-size") == option(second, "--tp-size") == ["16"]
    assert [option(c, "--node-rank") for c in (first, second)] == [["0"], ["1"]]
    assert option(second, "--dist-init-addr") == ["10.0.0.1:5000"]
    assert "NCCL_IB_DISABLE" not in variables(first)
    assert "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE" not in variables(first)
    with pytest.raises(ValueError, match="address"):
        Endpoints(nodes=2)
    with pytest.raises(ValueError, match="plan one replica"):
        server_commands(plan_for("qwen3.6-27b"), endpoints)


def test_shell_form_is_the_command() -> None:
    (command,) = server_commands(plan_for("kimi-k2.6", concurrency=1), Endpoints(draft_path="/a b"))
    words = shlex.split(command.shell().replace("\\\n", " "))
    assert tuple(words[-len(command.argv) :]) == command.argv
    head = words[: -len(command.argv)]
    assert head[:3] == ["env", "-u", "NCCL_GRAPH_FILE"]
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7" in head


def test_sglang_knows_every_option_and_variable() -> None:
    """By its sources: importing it takes long, and this fails when a name changes upstream."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.origin is None:
        pytest.skip("sglang is not installed")
    srt = Path(spec.origin).parent / "srt"
    fields = "\n".join(path.read_text() for path in (srt / "arg_groups/fields").glob("*.py"))
    plan = plan_for("kimi-k2.6", concurrency=1, deterministic=True)
    commands = server_commands(plan, Endpoints(nodes=2, dist_init_addr="a:1"))
    options = {word for c in commands for word in c.argv if word.startswith("--")}
    options |= {"--numa-node", "--dcp-size"}
    ours = {"--speculative-ddtree-budget"}
    for name in sorted(options - ours):
        field = name.removeprefix("--").replace("-", "_")
        assert re.search(rf"^    {field}: A\[", fields, re.M), name
    environ = (srt / "environ.py").read_text()
    assert "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE = EnvBool" in environ


def test_root_tuning_is_reported_with_its_reason() -> None:
    whats = [advice.what for advice in root_tuning(TWO_SOCKETS)]
    for word in ("ACS", "IOMMU", "resizable BAR", "ForceP2P", "NUMA balancing"):
        assert any(word in what for what in whats), word
    assert not any(
        "NUMA balancing" in advice.what for advice in root_tuning(read("four_on_one_socket"))
    )
    report = plan_report(plan_for("qwen3.6-27b"))
    assert "reported and not applied" in report
    settings_ = report[report.index("\nCommands") : report.index("\nFor root")]
    assert "iommu" not in settings_.lower()


def test_report_shows_machine_groups_reasons_and_alternatives() -> None:
    report = plan_report(plan_for("qwen3.6-27b"))
    sections = [line for line in report.splitlines() if line and not line.startswith(" ")]
    assert sections == [
        "Machine",
        "Groups",
        "Why",
        "Memory of one rank",
        "Memory by tensor-parallel size, GB a GPU",
        "Alternatives",
        "Predicted tok/s, all replicas together",
        "Commands",
        "Left to you",
        "For root, reported and not applied",
    ]
    assert "[GPU0 GPU1]  [GPU2 GPU3]  (PIX, NODE)" in report
    assert "cores 56-111,168-223" in report
    for label in ("* 2 x TP4", "4 x TP2", "8 x TP1", "1 x TP8"):
        assert label in report
    assert "uncertain facts of qwen3.6-27b: drafter" in report
    assert max(len(line) for line in report.splitlines()) < 200


@pytest.mark.parametrize("name", NAMES)
def test_every_machine_gets_a_report_and_json(name: str) -> None:
    plan = plan_for("qwen3-8b", topology=read(name).with_memory(RTX_PRO_6000))
    data = json.loads(json.dumps(to_json(plan)))
    assert [d["gpus"] for d in data["topology"]["domains"]] == [
        list(domain.gpus) for domain in plan.topology.domains
    ]
    assert len(data["servers"]) == len(plan.chosen.groups)
    assert data["options"][0] == data["chosen"]
    report = plan_report(plan)
    for gpu in plan.topology.indices:
        assert f"GPU{gpu}" in report


def test_times_of_another_card_are_marked() -> None:
    gpus = tuple(replace(gpu, name="Some Card") for gpu in TWO_SOCKETS.gpus)
    report = plan_report(plan_for("qwen3-8b", topology=replace(TWO_SOCKETS, gpus=gpus)))
    assert "these times are of an RTX PRO 6000, not of Some Card" in report
