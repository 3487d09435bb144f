"""Weights of a request go to the model that it means; what is derived from them follows.

SGLang loads an update into the target and the drafter unless the request selects one
(``SchedulerWeightUpdaterManager._select_runners``,
srt/managers/scheduler_components/weight_updater.py:178@0.5.23; updates from disk and from IPC can't
select). A DFlash drafter's tensors have a target's names (``DFlashDraftModel.load_weights``,
srt/models/dflash.py:885@0.5.23), so a target's would overwrite them. Here everything is the
target's but what selects ``draft``.

A folder that does not fit ends a server: SGLang's way back reads the new folder again
(``WeightUpdater.update_weights_from_disk``,
srt/model_executor/model_runner_components/weight_updater.py:226@0.5.23). Here the old one is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec

from sglang_ddtree.dflash.checkpoint import some, stored_tensors
from sglang_ddtree.engine.config_error import DDTreeConfigError
from sglang_ddtree.engine.options import is_running

_MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
SELECT = f"{_MANAGER}._select_runners"
FROM_DISK = f"{_MANAGER}.update_weights_from_disk"
LOADS = (
    FROM_DISK,
    f"{_MANAGER}.update_weights_from_tensor",
    f"{_MANAGER}.update_weights_from_distributed",
    f"{_MANAGER}.update_weights_from_ipc",
)
SESSIONS = (f"{_MANAGER}.begin_weight_update", f"{_MANAGER}.end_weight_update")
TARGET = (SELECT, *LOADS, *SESSIONS)

logger = logging.getLogger(__name__)

Method = Callable[..., Any]
_role: ContextVar[str | None] = ContextVar("ddtree_weight_update_role", default=None)


def role_of(selector: str) -> str:
    """Whose weights a request brings: ``draft`` where it says so, else ``target``."""
    return "draft" if selector == "draft" else "target"


def select(original: Method, manager: Any, selector: str = "all") -> Any:
    """The runners of the update in progress; those that were asked for outside of one."""
    return original(manager, _role.get() or selector)


def load(original: Method, manager: Any, request: Any) -> Any:
    """Load into one model only, and derive anew what depends on its weights."""
    if not _is_ours():
        return original(manager, request)
    role = role_of(getattr(request, "selector", "all"))
    opened = manager._session if hasattr(request, "selector") else None
    if opened is not None and role_of(opened.selector) != role:
        return _refused(
            original,
            f"this weight-update session is the {role_of(opened.selector)}'s, and the tensors are "
            f"the {role}'s: call /end_weight_update, then /begin_weight_update with selector "
            f'"{role}"',
        )
    try:
        return _loaded(original, manager, request, role)
    except Exception as error:  # it would end the server
        logger.exception("a weight update failed")
        manager.draft_worker.follow_weights()
        return _refused(
            original,
            f"the weights do not fit the {role} ({error!r}), and some may have been loaded: "
            "load a whole checkpoint",
        )


def load_from_disk(original: Method, manager: Any, request: Any) -> Any:
    """``load`` of a target's folder: a request can't say that it means the drafter."""
    from sglang.srt.runtime_context import get_model

    if not _is_ours():
        return original(manager, request)
    if is_drafter(request.model_path):
        return _refused(
            original,
            f"{request.model_path} is a drafter, and /update_weights_from_disk loads the target: "
            'send its tensors to /update_weights_from_tensor with selector "draft", between '
            '/begin_weight_update with selector "draft" and /end_weight_update',
        )
    runner = manager.tp_worker.model_runner
    before, load_format = runner.model_config.model_path, runner.load_config.load_format
    misshapen = misshapen_tensors(Path(before), Path(request.model_path))
    if misshapen:
        return _refused(
            original,
            f"{request.model_path} does not fit the served target (shapes of {some(misshapen)}): "
            "give a checkpoint of the same shapes, or start a server of its own for it",
        )
    try:
        answer = _loaded(original, manager, request, "target")
    except Exception as error:
        logger.exception("loading %s failed", request.model_path)
        runner.weight_updater.update_weights_from_disk(before, load_format)
        manager.draft_worker.follow_weights()
        return _refused(
            original,
            f"{request.model_path} can't be loaded into the served target ({error!r}), so {before} "
            "was loaded again: give a whole checkpoint of the same architecture",
        )
    if not answer.success and get_model().model_path == before:
        runner.model_config.model_path = before
    return answer


def session(original: Method, manager: Any, request: Any) -> Any:
    """Prepare or finish one model only: packing again what was unpacked may not give it back."""
    if not _is_ours():
        return original(manager, request)
    named = request if hasattr(request, "selector") else manager._session
    with _loading(role_of(getattr(named, "selector", "all"))):
        return _followed(manager, original(manager, request))


def is_drafter(model_path: str) -> bool:
    """Whether a folder or a hub name holds a DFlash drafter."""
    from transformers import PretrainedConfig

    try:
        config, _ = PretrainedConfig.get_config_dict(model_path)
    except (OSError, ValueError):
        return False  # the loader says what is wrong
    architectures = config.get("architectures") or ()
    return "dflash_config" in config or any("DFlash" in name for name in architectures)


def misshapen_tensors(served: Path, other: Path) -> list[str]:
    """Tensors whose shapes differ in two folders; none where one is no folder of safetensors."""
    from safetensors import SafetensorError

    try:
        old, new = stored_tensors(served), stored_tensors(other)
    except (OSError, SafetensorError):
        return []  # the loader says what is wrong
    return sorted(name for name in old.keys() & new.keys() if old[name] != new[name])


@contextmanager
def _loading(role: str) -> Iterator[None]:
    token = _role.set(role)
    try:
        yield
    finally:
        _role.reset(token)


def _is_ours() -> bool:
    return is_running()


def _loaded(original: Method, manager: Any, request: Any, role: str) -> Any:
    with _loading(role):
        answer = original(manager, request)
    return _followed(manager, answer)


def _followed(manager: Any, answer: Any) -> Any:
    """``answer`` once the worker has followed the weights, after an update that failed too."""
    try:
        manager.draft_worker.follow_weights()
    except DDTreeConfigError as error:
        return msgspec.structs.replace(answer, success=False, message=str(error))
    return answer


def _refused(original: Method, message: str) -> Any:
    from sglang.srt.managers import io_struct

    output = {
        "update_weights_from_disk": io_struct.UpdateWeightFromDiskReqOutput,
        "update_weights_from_tensor": io_struct.UpdateWeightsFromTensorReqOutput,
        "update_weights_from_distributed": io_struct.UpdateWeightsFromDistributedReqOutput,
        "update_weights_from_ipc": io_struct.UpdateWeightsFromIPCReqOutput,
    }[original.__name__]
    return output(success=False, message=message)


def register() -> None:
    """Queue the hooks."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks = {SELECT: select, **dict.fromkeys(LOADS, load), **dict.fromkeys(SESSIONS, session)}
    hooks[FROM_DISK] = load_from_disk
    for target in TARGET:
        HookRegistry.register(target, hooks[target], HookType.AROUND)
