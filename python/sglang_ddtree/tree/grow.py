"""Growing a draft tree: best-first search under a node budget, batched and without a host sync.

DDTree (arXiv 2604.12989) pops the likeliest frontier node off a heap and pushes its next sibling
and its first child. As no child is likelier than its parent, what `budget` pops return is simply
the first `budget` nodes in a total order: by log-probability, then by depth, then by their order
within the depth (log-probability, order of the parents, rank among the siblings). So a beam search
does: a node that is not among the first `budget` of its depth cannot be in the tree, nor can
anything below it. One stable sort a depth keeps the beam, one more over all beams picks the nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from sglang_ddtree.tree.candidates import Candidates
from sglang_ddtree.tree.draft_tree import DraftTree
from sglang_ddtree.tree.policy import GrowthPolicy
from sglang_ddtree.tree.topology import ancestor_words, node_range


def grow(
    candidates: Candidates,
    root_tokens: Tensor,
    policy: GrowthPolicy,
    *,
    max_depth: Tensor | None = None,
) -> DraftTree:
    """The tree of at most `budget` nodes under the root that hold the most draft probability.

    root_tokens: int64 [bs], the last committed tokens.
    policy: budget and spine. Where the spine's chain ends early, at a candidate of -inf or at
        `max_depth`, its slots do not go to branches: which budgets give chains is a matter of D
        alone (`GrowthPolicy.is_chain`).
    max_depth: integer [bs], the deepest node allowed in each request; 0 leaves the root.

    Nodes come in the order in which the search finds them, so the tree of a smaller budget is a
    prefix of the tree of a larger one, and node j of the spine is node j of the tree.
    Log-probabilities above 0 count as 0 and NaN as -inf. The number of kernel launches depends on D
    alone; the index tables of a shape are made at its first call, so call once before capturing a
    CUDA graph. Raises ValueError for root tokens that are not [bs].
    """
    bs = candidates.tokens.shape[0]
    if root_tokens.shape != (bs,):
        raise ValueError(f"root_tokens must be [{bs}], got {list(root_tokens.shape)}")
    device = candidates.tokens.device
    plan = _plan(candidates.depths, candidates.topk, policy, device)

    log_prob, child = _search(candidates, plan, max_depth)
    order, log_prob, live = _select(log_prob, plan)

    child = (child + plan.base).gather(1, order)
    place = child.new_full((bs, len(plan.base) + 1), -1)
    place.scatter_(1, order, node_range(plan.width, device).expand(bs, -1))
    parent = torch.where(live, place.gather(1, child // candidates.topk), -1)
    slot = plan.slot.expand(bs, -1).gather(1, order) + child % candidates.topk
    slot = torch.where(live, slot, 0)
    tokens = torch.cat((root_tokens.unsqueeze(1), candidates.tokens.flatten(1)), 1)
    return DraftTree(
        tokens=tokens.gather(1, slot),
        parent=parent.int(),
        depth=((slot + candidates.topk - 1) // candidates.topk).int(),
        ancestors=ancestor_words(parent, len(plan.widths)),
        log_prob=log_prob,
        num_nodes=live.sum(1, dtype=torch.int32),
    )


@dataclass(frozen=True, eq=False)
class _Plan:
    """Index tables for one shape. An *entry* is a member of a beam; entry 0 is the root, those of
    depth 1, 2, .. follow, and dead entries fill up to the width of the tree.

    width: N = budget + 1.
    widths: beam width of depth 1, 2, ..
    branches: nodes beyond the spine, or None without one.
    base: int64 [entries]; adding it to an index of a child among all children of the previous
        beam gives (entry of the parent) * K + (candidate). The root's parent is entry `entries`.
    slot: int64 [entries]; adding the candidate gives an index into (root, all candidates).
    spine: bool [entries], the root and the spine.
    first: for each depth float32 [K * previous width], +inf at 0 and -inf elsewhere.
    """

    width: int
    widths: tuple[int, ...]
    branches: int | None
    base: Tensor
    slot: Tensor
    spine: Tensor
    first: tuple[Tensor, ...]


@lru_cache(maxsize=64)
def _plan(depths: int, topk: int, policy: GrowthPolicy, device: torch.device) -> _Plan:
    budget, spine = policy.budget, policy.spine
    branches = max(0, budget - depths) if spine else None
    widths: list[int] = []
    for depth in range(min(depths, budget)):
        # Without a spine, a node at this depth leaves `depth` of the budget to its ancestors.
        limit = budget - depth if branches is None else 1 + branches
        widths.append(min((widths[-1] if widths else 1) * topk, limit))
    starts = list(accumulate(widths, initial=1))
    entries = max(starts[-1], policy.nodes)
    base, slot, is_spine = [entries * topk], [0], [spine]
    for depth, width in enumerate(widths):
        parents_start = starts[depth - 1] if depth else 0
        base += [parents_start * topk] * width
        slot += [1 + depth * topk] * width
        is_spine += [spine] + [False] * (width - 1)
    dead = entries - len(base)
    first = torch.full((topk * max(widths, default=1),), -math.inf, dtype=torch.float32)
    first[0] = math.inf
    first = first.to(device)
    return _Plan(
        width=policy.nodes,
        widths=tuple(widths),
        branches=branches,
        base=torch.tensor(base + [0] * dead, device=device),
        slot=torch.tensor(slot + [0] * dead, device=device),
        spine=torch.tensor(is_spine + [False] * dead, device=device),
        first=tuple(first[: topk * width] for width in [1, *widths[:-1]]),
    )


def _search(candidates: Candidates, plan: _Plan, max_depth: Tensor | None) -> tuple[Tensor, Tensor]:
    """All beams: float32 and int64 [bs, entries], cumulative log-probability of each entry and
    (index of the parent in its beam) * K + (candidate).

    The spine is the first of each beam, whatever its log-probability.
    """
    bs = candidates.tokens.shape[0]
    marginals = _increments(candidates.log_probs)
    if max_depth is not None:
        beyond = node_range(candidates.depths, marginals.device) >= max_depth.unsqueeze(1)
        marginals = marginals.masked_fill(beyond.unsqueeze(2), -math.inf)
    unconditional = marginals.unsqueeze(2).unbind(1)
    siblings = None
    if candidates.transitions is not None:
        siblings = _Siblings(candidates, candidates.transitions, marginals)

    beam = marginals.new_zeros(bs, 1)
    child = candidates.tokens.new_zeros(bs, 1)
    beams, children = [beam], [child]
    for depth, width in enumerate(plan.widths):
        conditional = siblings if depth else None
        increments = conditional.increments(depth, child) if conditional else unconditional[depth]
        log_probs = (beam.unsqueeze(2) + increments).flatten(1)
        key = log_probs if plan.branches is None else torch.maximum(log_probs, plan.first[depth])
        chosen = key.sort(dim=1, descending=True, stable=True)[1].narrow(1, 0, width)
        beam = log_probs.gather(1, chosen)
        child = conditional.child(depth, child, chosen) if conditional else chosen
        beams.append(beam)
        children.append(child)
    dead = len(plan.base) - 1 - sum(plan.widths)
    if dead:
        beams.append(beam.new_full((bs, dead), -math.inf))
        children.append(child.new_zeros(bs, dead))
    return torch.cat(beams, 1), torch.cat(children, 1)


def _select(log_prob: Tensor, plan: _Plan) -> tuple[Tensor, Tensor, Tensor]:
    """The entries that become nodes, in the order of the tree.

    Returns int64 [bs, N] entries, float32 [bs, N] log-probabilities and bool [bs, N] live nodes,
    which come first. Entries are in order of depth already, so a stable sort leaves parents first.
    """
    key, end = log_prob, None
    if plan.branches is not None:
        chain = plan.spine & (log_prob > -math.inf)
        key = log_prob.masked_fill(chain, math.inf)
        end = chain.sum(1, keepdim=True) + plan.branches
    order = key.sort(dim=1, descending=True, stable=True)[1].narrow(1, 0, plan.width)
    log_prob = log_prob.gather(1, order)
    if end is not None:
        dead = node_range(plan.width, end.device) >= end
        log_prob = log_prob.masked_fill(dead, -math.inf)
    return order, log_prob, log_prob > -math.inf


class _Siblings:
    """Children of every candidate, likeliest first, for drafters with transitions."""

    def __init__(self, candidates: Candidates, transitions: Tensor, marginals: Tensor) -> None:
        exists = (marginals[:, 1:] > -math.inf).unsqueeze(2)
        log_probs = torch.where(exists, _increments(transitions), -math.inf)
        self.topk = candidates.topk
        self.log_probs, self.candidates = log_probs.sort(dim=-1, descending=True, stable=True)

    def increments(self, depth: int, beam: Tensor) -> Tensor:
        """float32 [bs, width, K]: log-probabilities of the children of a beam by rank."""
        index = (beam % self.topk).unsqueeze(2).expand(-1, -1, self.topk)
        return self.log_probs[:, depth - 1].gather(1, index)

    def child(self, depth: int, beam: Tensor, chosen: Tensor) -> Tensor:
        """(index of the parent) * K + (rank) -> (index of the parent) * K + (candidate)."""
        parent = chosen // self.topk
        row = beam.gather(1, parent) % self.topk * self.topk
        candidates = self.candidates[:, depth - 1].flatten(1)
        return parent * self.topk + candidates.gather(1, row + chosen % self.topk)


def _increments(log_probs: Tensor) -> Tensor:
    """What best-first search needs: no NaN, and no child likelier than its parent."""
    return torch.nan_to_num(log_probs, nan=-math.inf, neginf=-math.inf).clamp(max=0.0)
