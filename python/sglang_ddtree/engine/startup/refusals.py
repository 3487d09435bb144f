"""Settings that can't be served end a server with the reasons alone and status 2.

SGLang lets what is raised while settings are resolved end the process, under a traceback of its
pipeline (srt/server_args.py:244@0.5.23), and so with what is raised while a scheduler is built,
before its ``run_event_loop`` (srt/managers/scheduler.py:6370@0.5.23), where the launching process
then fails in turn (srt/entrypoints/engine.py:2001@0.5.23). Settings that came from a command line
end it as a wrong flag does; ``Engine(...)`` raises ``DDTreeConfigError``, which its caller can
handle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree.engine.config_error import DDTreeConfigError
from sglang_ddtree.engine.options import FLAGS_ATTRIBUTE, is_asked_for
from sglang_ddtree.engine.upstream import refusal

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

RESOLVE = "sglang.srt.server_args.ServerArgs.resolve_once"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler.__init__"
DIED = "sglang.srt.entrypoints.engine._scheduler_died_error"

_launched_by_command = False


def end_with_reasons(original: Any, server_args: ServerArgs) -> Any:
    """Resolve settings; around ``resolve_once``."""
    global _launched_by_command
    ours = is_asked_for(server_args)
    # Only the command line's parser leaves it (startup/flags.py).
    _launched_by_command = hasattr(server_args, FLAGS_ATTRIBUTE)
    try:
        return original(server_args)
    except (AssertionError, ValueError) as error:
        if not _launched_by_command or not (ours or isinstance(error, DDTreeConfigError)):
            raise
        message = refusal.reasons(error)
        if message is None:
            raise
        refusal.stop(message)


def end_scheduler(original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Build a scheduler; what settings can't do is said once, by the first rank."""
    from sglang.srt.runtime_context import get_parallel

    try:
        return original(scheduler, *args, **kwargs)
    except DDTreeConfigError as error:
        refusal.stop_process(str(error) if get_parallel().tp_rank == 0 else "")


def end_launcher(original: Any, rank: int, process: Any) -> Exception:
    """The error of a scheduler that died while starting, which said its reasons if it refused."""
    process.join(timeout=10)
    if process.exitcode != refusal.STATUS:
        return original(rank, process)
    if _launched_by_command:
        raise SystemExit(refusal.STATUS)
    return DDTreeConfigError("a scheduler can't serve this configuration; it printed the reasons")


def register() -> None:
    HookRegistry.register(RESOLVE, end_with_reasons, HookType.AROUND)
    HookRegistry.register(SCHEDULER, end_scheduler, HookType.AROUND)
    HookRegistry.register(DIED, end_launcher, HookType.AROUND)
