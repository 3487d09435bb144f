"""A target in an offline SGLang engine that gives its hidden states at a drafter's layers."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from sglang_ddtree import lifetime
from sglang_ddtree.drafter.data.samples import Likeliest
from sglang_ddtree.drafter.errors import DrafterError, explain_os_error
from sglang_ddtree.drafter.model.target import read_target
from sglang_ddtree.drafter.upstream import capture_hook

# Memory, where the rows pass from one process to the other.
_MEMORY = Path("/dev/shm")


class CaptureEngine:
    """The target, started on entry and stopped on exit, and with this process, however it ends.

    Hidden states come from the capture that DFLASH prefills with
    (``--enable-return-aux-hidden-states``, srt/arg_groups/fields/exec_.py:127@0.5.23), so they are
    those the drafter will read when it is served.

    Args:
        target: folder or hub name.
        layer_ids: target layers, as in ``target_layer_ids`` of a drafter.
        top: how many of the target's likeliest tokens to ask for at each position, 0 for none.
        folder: of the run; names the spool, so that what a killed run left there is removed.
        flags: further flags of SGLang's server: ``--tp 8``, ``--dtype``, ...
    """

    def __init__(
        self,
        target: str,
        layer_ids: Sequence[int],
        folder: Path,
        flags: Sequence[str] = (),
        trust_remote_code: bool = False,
        top: int = 0,
    ) -> None:
        facts = read_target(target, trust_remote_code)
        if not facts.captures:
            raise DrafterError(
                f"SGLang's {facts.architecture} has no set_dflash_layers_to_capture: the hidden "
                "states of this architecture can't be captured"
            )
        self.width, self.top = len(layer_ids) * facts.hidden, top
        self.arguments = [
            *("--model-path", target, "--speculative-algorithm", "DFLASH"),
            "--enable-return-aux-hidden-states",
            *("--return-aux-hidden-state-layer-ids", *map(str, layer_ids)),
            # Rows of tokens found in the cache would be missing.
            "--disable-radix-cache",
            "--skip-tokenizer-init",
            *("--log-level", "error"),
            *(["--trust-remote-code"] if trust_remote_code else []),
            *flags,
        ]
        self._engine: Any = None
        name = f"ddtree-capture-{zlib.crc32(str(folder.absolute()).encode()):08x}"
        self._spool = (_MEMORY if os.access(_MEMORY, os.W_OK) else folder) / name

    def __enter__(self) -> CaptureEngine:
        import msgspec
        from sglang.srt.entrypoints.engine import Engine
        from sglang.srt.server_args import prepare_server_args

        lifetime.unwind_on_sigterm()

        class Capturing(Engine):
            run_scheduler_process_func = staticmethod(capture_hook.run_scheduler)

        shutil.rmtree(self._spool, ignore_errors=True)
        self._spool.mkdir(parents=True)
        os.environ[capture_hook.SPOOL] = str(self._spool)
        server_args = prepare_server_args(self.arguments)
        # As the Engine itself does where it fills in a field of a record made elsewhere.
        msgspec.Struct.__setattr__(server_args, "custom_sigquit_handler", engine_failed)
        self._engine = Capturing(server_args=server_args)
        self._engine.tokenizer_manager.signal_handler_class = _signal_handler()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._engine is not None:
            self._engine.shutdown()
        shutil.rmtree(self._spool, ignore_errors=True)

    def capture(
        self, sequences: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> list[tuple[Tensor, Likeliest | None]]:
        """Rows ``[tokens, K * hidden]`` of every sequence of token ids, in the target's dtype.

        With ``top``, also the likeliest tokens from each sequence's start on.

        Args:
            starts: position of the first token that the target wrote, at least 1.

        Raises:
            DrafterError: the rows could not be handed over.
        """
        from safetensors.torch import load_file

        assert self._engine is not None
        names = [f"{number:06d}" for number in range(len(sequences))]
        answers = self._engine.generate(
            input_ids=[list(ids) for ids in sequences],
            sampling_params={"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
            rid=names,
            return_hidden_states=True,
            **self._asking_for_top(starts),
        )
        found = []
        for name, ids, start, answer in zip(names, sequences, starts, answers, strict=True):
            if failed := answer["meta_info"].get("hidden_states"):
                number = failed[0][0]
                if not isinstance(number, int):
                    raise DrafterError(
                        f"SGLang answered with hidden states: the hook on {capture_hook.TARGET} "
                        "was not applied; this needs SGLang 0.5.23"
                    )
                raise explain_os_error(OSError(number, os.strerror(number), str(self._spool)))
            file = self._spool / f"{name}.safetensors"
            rows = load_file(file)[capture_hook.NAME]
            file.unlink()
            if rows.shape != (len(ids), self.width):
                raise DrafterError(
                    f"SGLang captured {list(rows.shape)} for {len(ids)} tokens of width "
                    f"{self.width}: the target's class does not capture all its rows"
                )
            top = self._likeliest(answer["meta_info"], len(ids), start) if self.top else None
            found.append((rows, top))
        return found

    def _asking_for_top(self, starts: Sequence[int]) -> dict[str, Any]:
        if not self.top:
            return {}
        # SGLang's first row stands for the position it begins at and is empty, so begin one before.
        return {
            "return_logprob": True,
            "logprob_start_len": [start - 1 for start in starts],
            "top_logprobs_num": self.top,
        }

    def _likeliest(self, meta: dict[str, Any], tokens: int, start: int) -> Likeliest:
        rows = meta["input_top_logprobs"][1:]
        if len(rows) != tokens - start:
            raise DrafterError(
                f"SGLang returned the likeliest tokens of {len(rows)} of {tokens - start} positions"
            )
        ids = torch.zeros(tokens, self.top, dtype=torch.int32)
        probs = torch.zeros(tokens, self.top)
        ids[start:] = torch.tensor([[token for _, token, _ in row] for row in rows])
        probs[start:] = torch.tensor([[value for value, _, _ in row] for row in rows]).exp()
        return Likeliest(ids, probs.to(torch.bfloat16))


def _signal_handler() -> type:
    """SGLang's handler of signals, but SIGTERM goes to whoever handles it now, at once.

    SGLang's would wait for a moment without requests (srt/managers/tokenizer_manager.py:3507
    @0.5.23), and a capture sends one batch after the other. Its event loop runs while a batch is
    under way only: what the loop alone handles is not seen after the last batch.
    """
    from sglang.srt.managers.tokenizer_manager import SignalHandler

    handle = signal.getsignal(signal.SIGTERM)

    class Handler(SignalHandler):
        def __init__(self, tokenizer_manager: Any) -> None:
            super().__init__(tokenizer_manager)
            # After the loop has taken the signal, which it does next (:2455).
            asyncio.get_running_loop().call_soon(signal.signal, signal.SIGTERM, handle)

        def sigterm_handler(self, signum: int = signal.SIGTERM, frame: Any = None) -> None:
            if callable(handle):
                handle(signal.SIGTERM, None)

    return Handler


def engine_failed(*_: Any) -> None:
    """A child of the engine sends SIGQUIT when it fails; its traceback is printed before."""
    from sglang.srt.utils import kill_process_tree

    print(
        "sglang-ddtree drafter: the target's engine failed (its error is above); everything "
        "captured so far is kept: run the same command again to go on",
        file=sys.stderr,
        flush=True,
    )
    shutil.rmtree(os.environ[capture_hook.SPOOL], ignore_errors=True)
    kill_process_tree(os.getpid(), include_parent=False)
    os._exit(1)
