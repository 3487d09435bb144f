"""How recurrent (GDN) layers verify a tree: the values of ``--speculative-ddtree-recurrent``."""

from __future__ import annotations

from typing import Literal, get_args

# A stash of a few vectors per node, or SGLang's kernels with a copy of the state after every node.
RecurrentMode = Literal["stash", "snapshot"]
RECURRENT_MODES: tuple[RecurrentMode, ...] = get_args(RecurrentMode)
DEFAULT_RECURRENT_MODE: RecurrentMode = "stash"
_EARLIER_NAMES = {"wy": "stash"}


def recurrent_mode(name: str) -> str:
    """The mode of a flag's value, given by its present name or by an earlier one."""
    return _EARLIER_NAMES.get(name, name)
