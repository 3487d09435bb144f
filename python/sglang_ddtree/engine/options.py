"""What shapes a draft tree and its verification, resolved from flags and the drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Ancestor masks are four 64-bit words at most: the root and 255 nodes.
MAX_BUDGET = 255
MAX_TOPK = 64
DEFAULT_TOPK = 8

# How recurrent layers verify a tree: our stash of a few vectors a node, or SGLang's kernels with a
# snapshot of the state after every node.
RECURRENT_MODES = ("wy", "snapshot")

FLAGS_ATTRIBUTE = "_ddtree_flags"


class DDTreeConfigError(ValueError):
    """A server setting that DDTREE can't serve; the message says what to change."""


@dataclass(frozen=True)
class TreeOptions:
    """Shape of the draft tree of one server.

    Attributes:
        block_size: ``B``, tokens of one drafter forward (the root and ``B - 1`` positions), fixed
            by the drafter's training.
        budget: nodes below the root, at most :data:`MAX_BUDGET`.
        topk: candidates kept per depth.
        spine: whether the drafter's top-1 chain comes first, before best-first growth.
        recurrent: how recurrent layers verify a tree, one of :data:`RECURRENT_MODES`.
    """

    block_size: int
    budget: int
    topk: int = DEFAULT_TOPK
    spine: bool = True
    recurrent: str = "wy"

    @property
    def verify_width(self) -> int:
        """``N``: rows of a request in the target's verify forward, root included."""
        return self.budget + 1

    @property
    def window(self) -> int:
        """KV slots that one step writes per request: the draft block or the tree."""
        return max(self.block_size, self.verify_width)


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
    flags = getattr(cfg, FLAGS_ATTRIBUTE, None) or {}
    raw = raw_input(cfg)
    drafted = raw.get("speculative_num_draft_tokens")
    budget = _pick(
        ("--speculative-ddtree-budget", flags.get("budget")),
        ("--speculative-num-draft-tokens minus 1", None if drafted is None else drafted - 1),
    )
    topk = _pick(
        ("--speculative-ddtree-topk", flags.get("topk")),
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
    return TreeOptions(
        block_size, budget, topk, flags.get("spine", True), flags.get("recurrent", "wy")
    )


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
