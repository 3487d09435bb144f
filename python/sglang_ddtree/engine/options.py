"""What shapes a draft tree and its verification, resolved from flags and the drafter."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sglang_ddtree.engine.config_error import DDTreeConfigError
from sglang_ddtree.recurrent_mode import (
    DEFAULT_RECURRENT_MODE,
    RECURRENT_MODES,
    RecurrentMode,
    recurrent_mode,
)
from sglang_ddtree.tree import MAX_BUDGET, GrowthPolicy

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

ALGORITHM = "DDTREE"  # the value of --speculative-algorithm
MAX_TOPK = 64
DEFAULT_TOPK = 8

FLAGS_ATTRIBUTE = "_ddtree_flags"
OPTIONS_ATTRIBUTE = "_ddtree_options"


@dataclass(frozen=True)
class TreeFlags:
    """The ``--speculative-ddtree-*`` flags as given; ``None`` where the drafter decides.

    Each field is a flag of its name. What it carries is how ``argparse`` takes it.
    """

    budget: int | None = field(
        default=None,
        metadata={
            "type": int,
            "help": f"Nodes of the draft tree below its root, 1 to {MAX_BUDGET}. Default: the "
            "drafter's block size minus 1, a tree no wider than the DFlash chain.",
        },
    )
    topk: int | None = field(
        default=None,
        metadata={
            "type": int,
            "help": f"Candidate tokens considered at each depth. Default: {DEFAULT_TOPK}.",
        },
    )
    spine: bool = field(
        default=True,
        metadata={
            "action": argparse.BooleanOptionalAction,
            "help": "Keep the drafter's most likely chain in the tree, before best-first growth, "
            "so that a tree never accepts less than the chain.",
        },
    )
    recurrent: RecurrentMode = field(
        default=DEFAULT_RECURRENT_MODE,
        metadata={
            "type": recurrent_mode,
            "choices": RECURRENT_MODES,
            "help": "How recurrent (GDN) layers verify a tree. stash: a few vectors kept per "
            "node. snapshot: SGLang's Triton kernels, with a copy of the state after every node.",
        },
    )


@dataclass(frozen=True)
class TreeOptions:
    """Shape of a draft tree, and how it is verified.

    Attributes:
        block_size: ``B``, tokens of one drafter forward (the root and ``B - 1`` positions), fixed
            by the drafter's training.
        budget: nodes below the root, at most :data:`MAX_BUDGET`.
        topk: candidates kept per depth.
        spine: whether the drafter's top-1 chain comes first, before best-first growth.
        recurrent: how recurrent layers verify a tree.
    """

    block_size: int
    budget: int
    topk: int = DEFAULT_TOPK
    spine: bool = TreeFlags.spine
    recurrent: RecurrentMode = DEFAULT_RECURRENT_MODE

    @property
    def depths(self) -> int:
        """``D``, positions that the drafter proposes."""
        return self.block_size - 1

    @property
    def growth(self) -> GrowthPolicy:
        """Which nodes the tree gets."""
        return GrowthPolicy(self.budget, self.spine)

    @property
    def is_chain(self) -> bool:
        """Whether the tree is the drafter's top-1 chain, which needs no mask and no moved rows."""
        return self.growth.is_chain(self.depths)

    @property
    def verify_width(self) -> int:
        """``N``: rows of a request in the target's verify forward, root included."""
        return self.growth.nodes

    @property
    def window(self) -> int:
        """KV slots that one step writes per request: the draft block or the tree."""
        return max(self.block_size, self.verify_width)


def is_asked_for(cfg: Any) -> bool:
    """Whether settings ask for DDTREE.

    Args:
        cfg: server arguments, or any view of them; SGLang takes the name in any case.
    """
    return (cfg.speculative_algorithm or "").upper() == ALGORITHM


def is_running() -> bool:
    """Whether the server that this process belongs to decodes with trees."""
    from sglang.srt.runtime_context import get_spec

    return get_spec().speculative_algorithm == ALGORITHM


def options_of(server_args: ServerArgs) -> TreeOptions:
    """The tree that start-up resolved; it travels on the record to every process."""
    return getattr(server_args, OPTIONS_ATTRIBUTE)


def running_options() -> TreeOptions:
    """The tree of the server that this process belongs to."""
    from sglang.srt.runtime_context import get_server_args

    return options_of(get_server_args())


def stashes() -> bool:
    """Whether trees are decoded here, and recurrent layers stash nodes instead of snapshots."""
    return is_running() and running_options().recurrent == "stash"


def resolve_options(cfg: Any, block_size: int, max_topk: int) -> TreeOptions:
    """Combine the ``--speculative-ddtree-*`` flags with SGLang's own spellings.

    ``Engine(...)`` takes no flags of a plugin, so ``speculative_num_draft_tokens`` (the budget plus
    1) and ``speculative_eagle_topk`` say the same; two forms with different values are an error.

    Args:
        cfg: server arguments, or any view of them before resolution.
        block_size: of the drafter.
        max_topk: candidates that a depth can have, at most :data:`MAX_TOPK`.

    Raises:
        DDTreeConfigError: a value out of range, or two flags that disagree.
    """
    flags: TreeFlags = getattr(cfg, FLAGS_ATTRIBUTE, None) or TreeFlags()
    raw = raw_input(cfg)
    drafted = raw.get("speculative_num_draft_tokens")
    budget = _pick(
        ("--speculative-ddtree-budget", flags.budget),
        ("--speculative-num-draft-tokens minus 1", None if drafted is None else drafted - 1),
    )
    topk = _pick(
        ("--speculative-ddtree-topk", flags.topk),
        ("--speculative-eagle-topk", raw.get("speculative_eagle_topk")),
    )
    budget = block_size - 1 if budget is None else budget
    topk = min(DEFAULT_TOPK, max_topk) if topk is None else topk
    if not 1 <= budget <= MAX_BUDGET:
        raise DDTreeConfigError(
            f"--speculative-ddtree-budget must be between 1 and {MAX_BUDGET}, got {budget}"
        )
    if not 1 <= topk <= max_topk:
        raise DDTreeConfigError(
            f"--speculative-ddtree-topk must be between 1 and {max_topk}, got {topk}"
        )
    return TreeOptions(block_size, budget, topk, flags.spine, flags.recurrent)


def raw_input(cfg: Any) -> dict[str, Any]:
    """What the user gave, before SGLang resolved defaults.

    ``_ForeignDefaults``, which plugins receive (srt/arg_groups/overrides.py:138@0.5.23), and the
    record itself both forward ``_raw_input``; a record that was not resolved yet has none and is
    its own input.
    """
    raw = getattr(cfg, "_raw_input", None)
    if raw is not None:
        return dict(raw)
    names = (
        "speculative_num_draft_tokens",
        "speculative_eagle_topk",
        "attention_backend",
        "decode_attention_backend",
    )
    return {name: getattr(cfg, name, None) for name in names}


def _pick(ours: tuple[str, int | None], theirs: tuple[str, int | None]) -> int | None:
    if ours[1] is not None and theirs[1] is not None and ours[1] != theirs[1]:
        raise DDTreeConfigError(
            f"{ours[0]} is {ours[1]} but {theirs[0]} is {theirs[1]}; give one of the two"
        )
    return theirs[1] if ours[1] is None else ours[1]
