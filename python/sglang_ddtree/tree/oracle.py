"""Growth and acceptance of one tree in plain Python: what `grow` and `accept` are held against.

Nothing but the policy is shared with the tensor code, and nothing of it runs in a server.
"""

from __future__ import annotations

import ctypes
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sglang_ddtree.tree.policy import GrowthPolicy


@dataclass(frozen=True)
class Node:
    """One node: its token, the index of its parent (-1: root), its depth, its log-probability."""

    token: int
    parent: int
    depth: int
    log_prob: float


@dataclass(order=True)
class _Entry:
    """A node on the frontier. Likelier first, then shallower, then by `order` in its depth:
    log-probability, order of the parent, rank among the siblings."""

    cost: float
    depth: int
    order: tuple
    parent: int = field(compare=False)
    rank: int = field(compare=False)


@dataclass(frozen=True)
class _Grown:
    node: Node
    candidate: int
    order: tuple


def grow_oracle(
    tokens: Sequence[Sequence[int]],
    log_probs: Sequence[Sequence[float]],
    root_token: int,
    policy: GrowthPolicy,
    *,
    max_depth: int | None = None,
    transitions: Sequence[Sequence[Sequence[float]]] | None = None,
) -> list[Node]:
    """Best-first growth with a heap (DDTree, arXiv 2604.12989), the root and live nodes only.

    tokens, log_probs: [D][K], log_probs float32 values without NaN, descending along K;
    transitions: [D-1][K][K], as in `Candidates`. Sums are rounded to float32 at each node.
    """
    depths = len(tokens) if max_depth is None else min(len(tokens), max_depth)

    def ranked(candidate: int, depth: int) -> list[tuple[int, float]]:
        """Candidates at `depth` (0-based) below a candidate of the depth above, likeliest first."""
        row: Sequence[float] = log_probs[depth]
        if transitions is not None and depth > 0:
            row = transitions[depth - 1][candidate]
        exists = [c for c, log_prob in enumerate(log_probs[depth]) if log_prob > -math.inf]
        pairs = [(c, min(row[c], 0.0)) for c in exists if row[c] > -math.inf]
        return sorted(pairs, key=lambda pair: -pair[1]) if transitions else pairs

    grown = [_Grown(Node(root_token, -1, 0, 0.0), 0, ())]
    heap: list[_Entry] = []

    def push(parent: int, rank: int) -> None:
        """Put the child of that rank on the frontier, if there is one."""
        up = grown[parent]
        siblings = ranked(up.candidate, up.node.depth) if up.node.depth < depths else []
        if rank < len(siblings):
            log_prob = ctypes.c_float(up.node.log_prob + siblings[rank][1]).value
            if log_prob > -math.inf:
                order = (1, -log_prob, up.order, rank)
                heapq.heappush(heap, _Entry(-log_prob, up.node.depth + 1, order, parent, rank))

    def add(entry: _Entry, order: tuple) -> None:
        candidate = ranked(grown[entry.parent].candidate, entry.depth - 1)[entry.rank][0]
        token = tokens[entry.depth - 1][candidate]
        node = Node(token, entry.parent, entry.depth, -entry.cost)
        grown.append(_Grown(node, candidate, order))

    pops = policy.budget
    if policy.spine:
        pops = max(0, policy.budget - len(tokens))
        for _ in range(min(policy.budget, depths)):
            push(len(grown) - 1, 0)
            if heap:
                add(heap.pop(), (0,))  # before all other nodes of its depth
        for parent in range(len(grown) - 1):
            push(parent, 1)
    else:
        push(0, 0)
    for _ in range(pops):
        if not heap:
            break
        entry = heapq.heappop(heap)
        add(entry, entry.order)
        push(entry.parent, entry.rank + 1)
        push(len(grown) - 1, 0)
    return [item.node for item in grown]


def accept_oracle(
    tokens: Sequence[int], parents: Sequence[int], target_tokens: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Walk from the root to the child that holds the target's token, until there is none.

    Takes live nodes only. Where siblings share a token, all of them are tried; the deepest end
    wins, then the lowest index. Returns the nodes of the path and the output tokens of the step.
    """

    def ends(node: int, path: list[int]) -> list[list[int]]:
        wanted = target_tokens[node]
        children = [i for i, up in enumerate(parents) if up == node and tokens[i] == wanted]
        return [end for i in children for end in ends(i, [*path, i])] or [path]

    path = max(ends(0, [0]), key=lambda end: (len(end), -end[-1]))
    return path, [tokens[i] for i in path[1:]] + [target_tokens[path[-1]]]
