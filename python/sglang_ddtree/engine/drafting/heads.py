"""The heads that turn a drafter's states into candidates, by what its config asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from sglang.srt.models.dflash import DFlashDraftModel
    from sglang.srt.speculative.dflash_utils import DFlashDraftConfig

    from sglang_ddtree.tree import Candidates


class DraftHead(Protocol):
    """What the worker asks for the candidates of a step."""

    def propose(self, hidden: torch.Tensor, roots: torch.Tensor) -> Candidates:
        """Candidates of all depths, with ``transitions`` where the head conditions on a parent.

        Args:
            hidden: ``[bs, D, hidden]``, the drafter's last states of the positions after the root.
            roots: int64 ``[bs]``, the last committed tokens.

        Returns:
            The same on every rank of a tensor-parallel group.
        """
        ...


# drafter, target's head (or the embedding table where they are one), candidates per depth -> head
BuildHead = Callable[["DFlashDraftModel", "torch.nn.Module", int], DraftHead]


@dataclass(frozen=True)
class HeadKind:
    """One kind of drafter head.

    Attributes:
        name: as its authors call it.
        is_asked_for: whether a drafter's config has it.
        build: makes the head of a loaded drafter; ``None`` for one that DDTREE does not drive.
    """

    name: str
    is_asked_for: Callable[[DFlashDraftConfig], bool]
    build: BuildHead | None


def _marginal(drafter: DFlashDraftModel, lm_head: torch.nn.Module, topk: int) -> DraftHead:
    from sglang_ddtree.engine.drafting import vocabulary
    from sglang_ddtree.engine.drafting.marginal_head import MarginalHead

    return MarginalHead(lm_head, vocabulary.of(drafter), topk)


# The first that a config asks for is taken; a plain DFlash drafter asks for nothing.
HEADS = (
    HeadKind("Domino", lambda config: config.is_domino, None),
    HeadKind("DFlash2 selector", lambda config: bool(config.selector_rank), None),
    HeadKind("DFlash2 grouped-convolution", lambda config: bool(config.conv_kernel_size), None),
    HeadKind("DFlash", lambda config: True, _marginal),
)


def kind_of(config: DFlashDraftConfig) -> HeadKind:
    """The head that a drafter's config asks for."""
    return next(kind for kind in HEADS if kind.is_asked_for(config))


def build(drafter: DFlashDraftModel, lm_head: torch.nn.Module, topk: int) -> DraftHead:
    """The head of a loaded drafter, whose kind start-up has found to be driven."""
    kind = kind_of(drafter.draft_config)
    assert kind.build is not None, kind.name
    return kind.build(drafter, lm_head, topk)


def head_problems(config: DFlashDraftConfig) -> list[str]:
    """Why a drafter's head can't be served, if so."""
    kind = kind_of(config)
    if kind.build is not None:
        return []
    return [
        f"drafters with a {kind.name} head are not driven by DDTREE yet: use a plain DFlash drafter"
    ]
