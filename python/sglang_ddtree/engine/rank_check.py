"""A debug check that tensor-parallel ranks never decide differently.

With ``SGLANG_DDTREE_CHECK_RANKS=1`` the ranks compare, in every decode step, what they decided:
lengths, tree and accepted path. A rank that decided otherwise ends the server with the step and
the first element that differs. It copies to the host in each step, so it is for tests and for the
hunt after a divergence, not for serving.
"""

from __future__ import annotations

import itertools
import logging
import os

from sglang.srt.layers.dp_attention import get_dp_tp_group

from sglang_ddtree.engine.agreement import RanksDisagree, require_agreement
from sglang_ddtree.engine.step import Step
from sglang_ddtree.tree import Acceptance, DraftTree

VARIABLE = "SGLANG_DDTREE_CHECK_RANKS"
REPORT_EVERY = 50

logger = logging.getLogger(__name__)
_steps = itertools.count(1)


def check_ranks(step: Step, tree: DraftTree, accepted: Acceptance) -> None:
    """Compare one step's decisions over the tensor-parallel group, where the variable asks for it.

    Raises RanksDisagree.
    """
    if os.environ.get(VARIABLE) != "1":
        return
    group = get_dp_tp_group()
    if group.world_size == 1:
        return
    number = next(_steps)
    decided = {
        "root token": step.root_tokens,
        "prefix length": step.prefix_lens,
        "tree token": tree.tokens,
        "tree parent": tree.parent,
        "accepted path": accepted.path,
        "accepted length": accepted.length,
        "output token": accepted.tokens,
    }
    try:
        require_agreement(decided, group.cpu_group)
    except RanksDisagree as error:
        raise RanksDisagree(f"DDTREE step {number}: {error}") from error
    if number % REPORT_EVERY == 0 and group.rank_in_group == 0:
        logger.info("DDTREE: %d ranks agreed in %d steps", group.world_size, number)
