"""Records what the host does in a decode step, from inside a server.

An SGLang plugin of the servers under test (see ``common/plugins.py``), it does nothing until a test
arms it. Then every torch operation of ``DDTreeWorker._decode`` that launches work is counted,
except those of the two model forwards and of the attention backend, and whatever makes the host
wait for a device is named.

On the CPU platform a tensor that lives on the host by design (``seq_lens_cpu``) and one that stands
for a device's look alike. They are told apart by where they come from: host tensors are the
scheduler's copies of the lengths and all that is computed from nothing else.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "DDTREE_STEP_PROBE"

# Operations whose result, or its shape, the host must wait for.
WAITING_OPS = {
    "_local_scalar_dense",
    "is_nonzero",
    "equal",
    "nonzero",
    "masked_select",
    "unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "repeat_interleave.Tensor",
    "bincount",
}
# Methods that copy to the host; on a CPU tensor some of them are no operation at all.
WAITING_METHODS = {
    "cpu",
    "numpy",
    "tolist",
    "item",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__array__",
}


@dataclass(frozen=True)
class Record:
    """One decode step: requests, torch operations by name, and what made the host wait."""

    batch_size: int
    counts: dict[str, int]
    waits: list[str]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True)
class Probe:
    """A test's end: arm, run requests, read."""

    file: Path

    @property
    def env(self) -> dict[str, str]:
        return {VARIABLE: str(self.file)}

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Record the steps that begin inside the block."""
        self.file.write_text("")
        try:
            yield
        finally:
            self.file.rename(self.file.with_suffix(".done"))

    def records(self) -> list[Record]:
        lines = self.file.with_suffix(".done").read_text().splitlines()
        return [Record(**json.loads(line)) for line in lines]


def register() -> None:
    """Entry point: runs in every process of a server."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang_ddtree.engine.worker.DDTreeWorker._decode", record_step, HookType.AROUND
    )


def record_step(decode: Callable[..., Any], worker: Any, batch: Any, *rest: Any) -> Any:
    """Run one decode step, recorded while the probe is armed."""
    file = Path(os.environ[VARIABLE])
    if not file.exists():
        return decode(worker, batch, *rest)
    recorder = _recorder(_host_copies(batch))
    with recorder, _unrecorded(worker, recorder):
        result = decode(worker, batch, *rest)
    record = Record(len(batch.reqs), dict(recorder.counts), recorder.waits)
    with file.open("a") as out:
        out.write(json.dumps(record.__dict__) + "\n")
    return result


def _host_copies(batch: Any) -> list[Any]:
    """The scheduler's host tensors of a batch, made distinct from their device twins."""
    draft_input = batch.spec_info
    if batch.seq_lens_cpu is not None:
        batch.seq_lens_cpu = batch.seq_lens_cpu.clone()
    if draft_input.nxt_kv_lens_cpu is not None:
        draft_input.nxt_kv_lens_cpu = draft_input.nxt_kv_lens_cpu.clone()
    copies = (batch.seq_lens_cpu, draft_input.nxt_kv_lens_cpu)
    return [tensor for tensor in copies if tensor is not None]


@contextmanager
def _unrecorded(worker: Any, recorder: Any) -> Iterator[None]:
    """Pause the recorder in both model forwards and in the attention backends' set-up."""
    places = [
        (worker.draft_model_runner, "forward"),
        (worker.target_worker, "forward_batch_generation"),
        (worker.model_runner.attn_backend, "init_forward_metadata"),
    ]
    own = [vars(place).get(name) for place, name in places]
    for place, name in places:
        setattr(place, name, recorder.paused(getattr(place, name)))
    try:
        yield
    finally:
        for (place, name), before in zip(places, own, strict=True):
            if before is None:
                delattr(place, name)  # uncovers the method of its class
            else:
                setattr(place, name, before)


def _recorder(host: list[Any]) -> Any:
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Recorder:
        def __init__(self) -> None:
            self.counts: Counter[str] = Counter()
            self.waits: list[str] = []
            self.active = True
            self._host = {id(tensor): tensor for tensor in host}
            self._modes = (Operations(), Methods())

        def __enter__(self) -> Recorder:
            for mode in self._modes:
                mode.__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            for mode in reversed(self._modes):
                mode.__exit__(*error)

        def paused(self, function: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                before, self.active = self.active, False
                try:
                    return function(*args, **kwargs)
                finally:
                    self.active = before

            return run

        def from_host(self, *values: Any) -> bool:
            tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
            return bool(tensors) and all(id(tensor) in self._host for tensor in tensors)

        def keep_host(self, result: Any) -> None:
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    self._host[id(leaf)] = leaf  # kept alive, so that no other takes its id

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            result = func(*args, **kwargs)
            if recorder.active:
                if recorder.from_host(args, kwargs):
                    recorder.keep_host(result)
                else:
                    name = str(func).removeprefix("aten.").removesuffix(".default")
                    if func._schema.is_mutable or not shares_memory(result, args):
                        recorder.counts[name] += 1  # a view launches nothing
                    if waits(name, args):
                        recorder.waits.append(name)
            return result

    class Methods(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            name = getattr(func, "__name__", "")
            if recorder.active and name in WAITING_METHODS and not recorder.from_host(args):
                recorder.waits.append(f"Tensor.{name}")
            return func(*args, **kwargs)

    def storages(values: Any) -> set[int]:
        tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        return {tensor.untyped_storage().data_ptr() for tensor in tensors}

    def shares_memory(result: Any, args: tuple[Any, ...]) -> bool:
        return bool(storages(result) & storages(args))

    def waits(name: str, args: tuple[Any, ...]) -> bool:
        if name in WAITING_OPS or name.split(".")[0] in WAITING_OPS - {"repeat_interleave.Tensor"}:
            return True
        if name.split(".")[0] not in ("index", "index_put", "index_put_", "_index_put_impl_"):
            return False
        if len(args) > 2 and args[2].numel() == 1:
            return False  # x[mask] = number is a masked fill
        indices = (leaf for leaf in tree_leaves(args[1]) if isinstance(leaf, torch.Tensor))
        return any(index.dtype == torch.bool for index in indices)

    recorder = Recorder()
    return recorder
