"""DDTREE as SGLang's scheduler sees it: a DFLASH-like algorithm with two widths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from sglang_ddtree.engine.options import ALGORITHM, TreeOptions, running_options

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs


class DDTreeAlgorithm(CustomSpecAlgo):
    """Duck-types ``SpeculativeAlgorithm`` (srt/speculative/spec_info.py@0.5.23).

    It answers as a member of the DFLASH family, so that the scheduler captures target layers,
    allocates draft pools and reads results as it does for DFLASH. What differs is the width: the
    drafter runs ``block_size`` rows a request, the target ``budget + 1``.
    """

    def is_dflash(self) -> bool:
        return True

    def is_dflash_family(self) -> bool:
        return True

    def supports_target_verify_for_draft(self) -> bool:
        return True

    def supports_prefill_shared_read_done(self) -> bool:
        return True

    # The core calls need_topk, carries_draft_hidden_states and create_future_map on every
    # algorithm, but the base class lacks them (srt/managers/scheduler.py:1540,1681@0.5.23).
    def need_topk(self) -> bool:
        return False

    def carries_draft_hidden_states(self) -> bool:
        return False

    def create_future_map(
        self, device: Any, req_to_token_pool: Any, *args: Any, **kwargs: Any
    ) -> Any:
        from sglang.srt.managers.overlap_utils import FutureMap

        return FutureMap(device, self, req_to_token_pool, *args, **kwargs)

    def get_num_tokens_per_req_for_target_verify(
        self, num_draft_tokens: int, is_draft_worker: bool
    ) -> int:
        options = self.options
        return options.block_size if is_draft_worker else options.verify_width

    @property
    def options(self) -> TreeOptions:
        """The tree of the server that this process belongs to."""
        return running_options()


def register() -> None:
    """Register DDTREE with SGLang's registry of speculative algorithms."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    def create_worker(server_args: ServerArgs) -> type:
        from sglang_ddtree.engine.worker import DDTreeWorker

        return DDTreeWorker

    SpeculativeAlgorithm.register(ALGORITHM, supports_overlap=True, spec_class=DDTreeAlgorithm)(
        create_worker
    )
