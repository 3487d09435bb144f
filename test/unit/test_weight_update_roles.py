"""Which model each weight-update request loads, over SGLang's manager with recording runners."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import contextlib, json
from types import SimpleNamespace
import torch
from sglang.srt.managers import io_struct as io
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.runtime_context import get_context, get_spec
from sglang_ddtree.engine.weights import updates as weight_updates

calls = []

class Updater:
    def __init__(self, role):
        self.role = role

    def __getattr__(self, name):
        if name == "receive_weights_from_distributed":
            return lambda **_: []
        def call(*_, **__):
            calls.append((self.role, name))
            return True, "Success"
        return call

class Worker:
    def __init__(self, role):
        config = SimpleNamespace(model_path="nowhere", load_format="auto")
        self.model_runner = SimpleNamespace(
            weight_updater=Updater(role), model_config=config, load_config=config
        )
        self.role = role

    def weight_update_runners(self):
        return [(self.role, self.model_runner)]

    def deserialize_own_rank(self, _):
        return []

    def follow_weights(self):
        calls.append(("worker", "follow"))

def manager():
    made = object.__new__(SchedulerWeightUpdaterManager)
    for name, value in dict(
        tp_worker=Worker("target"), draft_worker=Worker("draft"), metrics_collector=None,
        flush_cache=lambda **_: True, _session=None, tp_cpu_group=None,
        scheduler=SimpleNamespace(record_weight_version_change=lambda new_version: None),
    ).items():
        setattr(made, name, value)
    return made

def run(requests):
    calls.clear()
    owner = manager()
    answers = [getattr(owner, name)(request).success for name, request in requests]
    return {"calls": list(calls), "answers": answers}

def session(update, selector):
    named = {} if selector is None else {"selector": selector}
    load = {
        "tensor": lambda: io.UpdateWeightsFromTensorReqInput(serialized_named_tensors=[], **named),
        "distributed": lambda: io.UpdateWeightsFromDistributedReqInput(
            names=[], dtypes=[], shapes=[], **named
        ),
    }[update]()
    return [
        ("begin_weight_update", io.BeginWeightUpdateReqInput(**named)),
        (f"update_weights_from_{update}", load),
        ("end_weight_update", io.EndWeightUpdateReqInput()),
    ]

torch.distributed.barrier = lambda group=None: None
weight_updates.register()
HookRegistry.apply_hooks()
report = {}
for algorithm in ("DDTREE", "DFLASH"):
    with (
        get_context().override_server_args(), get_spec().override(speculative_algorithm=algorithm)
    ):
        for update in ("tensor", "distributed"):
            for selector in (None, "all", "target", "draft"):
                report[f"{algorithm} {update} {selector}"] = run(session(update, selector))
            mixed = [session(update, "target")[0], session(update, "draft")[1]]
            report[f"{algorithm} {update} mixed"] = run(mixed)
        disk = io.UpdateWeightFromDiskReqInput(model_path="nowhere")
        report[f"{algorithm} disk"] = run([("update_weights_from_disk", disk)])
        ipc = io.UpdateWeightsFromIPCReqInput(zmq_handles={})
        report[f"{algorithm} ipc"] = run([("update_weights_from_ipc", ipc)])
print(json.dumps(report))
"""


def test_one_model_a_request() -> None:
    """Both only for another algorithm, which the hooks leave alone."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    for case, outcome in report.items():
        algorithm, *_, last = case.split()
        loaded = {role for role, _ in outcome["calls"]} - {"worker"}
        if algorithm == "DFLASH":
            assert loaded == ({last} if last in ("target", "draft") else {"target", "draft"}) or (
                last == "mixed"
            )
        elif last == "mixed":
            assert loaded == {"target"}  # its session was opened
            assert outcome["answers"] == [True, False]
        else:
            assert loaded == {"draft" if last == "draft" else "target"}, case
            assert all(outcome["answers"])
            assert outcome["calls"][-1] == ["worker", "follow"]
