"""Launches of the Triton kernels that grow a tree, accept a path and move its KV rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sglang_ddtree._kernels.triton.accept import accept_kernel, move_rows_kernel
from sglang_ddtree._kernels.triton.grow import grow_kernel
from sglang_ddtree.tree import MAX_BUDGET, Acceptance, Candidates, DraftTree, GrowthPolicy
from sglang_ddtree.tree.topology import num_words

MAX_NODES = 256


def grow_triton(
    candidates: Candidates,
    root_tokens: Tensor,
    policy: GrowthPolicy,
    *,
    max_depth: Tensor | None = None,
) -> DraftTree:
    """`tree.grow` in one launch, the same tree bit for bit.

    Drafters with transitions cost one more launch, which sorts them.
    Raises ValueError for a budget above 255 and root tokens that are not [bs].
    """
    bs, depths, topk = candidates.tokens.shape
    nodes = policy.nodes
    if policy.budget > MAX_BUDGET:
        raise ValueError(f"budget must be 0 to {MAX_BUDGET}, got {policy.budget}")
    if root_tokens.shape != (bs,):
        raise ValueError(f"root_tokens must be [{bs}], got {list(root_tokens.shape)}")
    device, words = candidates.tokens.device, num_words(nodes)
    log_probs = candidates.log_probs.contiguous()
    siblings, ranked = log_probs, log_probs
    if candidates.transitions is not None:
        siblings, ranked = _ranked(candidates.transitions, log_probs)
    tree = DraftTree(
        tokens=torch.empty(bs, nodes, dtype=torch.int64, device=device),
        parent=torch.empty(bs, nodes, dtype=torch.int32, device=device),
        depth=torch.empty(bs, nodes, dtype=torch.int32, device=device),
        ancestors=torch.empty(bs, nodes, words, dtype=torch.int64, device=device),
        log_prob=torch.empty(bs, nodes, dtype=torch.float32, device=device),
        num_nodes=torch.empty(bs, dtype=torch.int32, device=device),
    )
    grow_kernel[(bs,)](
        candidates.tokens.contiguous(),
        log_probs,
        siblings,
        ranked,
        root_tokens.contiguous(),
        root_tokens if max_depth is None else max_depth.contiguous(),
        tree.tokens,
        tree.parent,
        tree.depth,
        tree.ancestors,
        tree.log_prob,
        tree.num_nodes,
        D=depths,
        K=topk,
        NODES=nodes,
        SPINE=policy.spine,
        WORDS=words,
        BLOCK=max(16, triton.next_power_of_2(nodes)),
        BLOCK_WORDS=triton.next_power_of_2(words),
        LIMITED=max_depth is not None,
        CONDITIONAL=candidates.transitions is not None,
        num_warps=1,
    )
    return tree


def accept_triton(
    tree: DraftTree, target_tokens: Tensor, max_depth: int | None = None
) -> Acceptance:
    """`tree.accept` in one launch. Raises ValueError on target tokens that are not int64 [bs, N]
    and on more than 256 nodes.
    """
    bs, nodes = tree.tokens.shape
    if target_tokens.shape != (bs, nodes) or target_tokens.dtype != torch.int64:
        raise ValueError(
            f"target_tokens must be int64 {[bs, nodes]}, got {target_tokens.dtype} "
            f"{list(target_tokens.shape)}"
        )
    if nodes > MAX_NODES:
        raise ValueError(f"a tree may have {MAX_NODES} nodes, got {nodes}")
    steps = nodes if max_depth is None else max_depth + 1
    device, words = tree.tokens.device, num_words(nodes)
    accepted = Acceptance(
        path=torch.empty(bs, steps, dtype=torch.int64, device=device),
        length=torch.empty(bs, dtype=torch.int32, device=device),
        leaf=torch.empty(bs, dtype=torch.int64, device=device),
        tokens=torch.empty(bs, steps, dtype=torch.int64, device=device),
        bonus=torch.empty(bs, dtype=torch.int64, device=device),
    )
    accept_kernel[(bs,)](
        tree.tokens,
        tree.parent,
        tree.depth,
        tree.ancestors,
        target_tokens.contiguous(),
        accepted.path,
        accepted.length,
        accepted.leaf,
        accepted.tokens,
        accepted.bonus,
        NODES=nodes,
        WORDS=words,
        STEPS=steps,
        BLOCK=max(16, triton.next_power_of_2(nodes)),
        BLOCK_WORDS=triton.next_power_of_2(words),
        BLOCK_STEPS=triton.next_power_of_2(steps),
        num_warps=4,
    )
    return accepted


@dataclass(frozen=True, eq=False)
class PoolRows:
    """Where the rows of all layers of a KV pool are; made once a pool.

    addresses: int64 [buffers], of keys and values of every layer. widths: int64 [buffers], values
    of one row. widest: the largest of them. bits: of one value, 8, 16 or 32.
    """

    addresses: Tensor
    widths: Tensor
    widest: int
    bits: int

    @classmethod
    def of(cls, buffers: list[Tensor]) -> PoolRows:
        """The rows of contiguous buffers [slots, ...] with values of one size.

        Raises ValueError where a buffer is not contiguous, lies elsewhere, or has other values.
        """
        first = buffers[0]
        for buffer in buffers:
            same = buffer.device == first.device and buffer.itemsize == first.itemsize
            if not (same and buffer.is_contiguous()):
                raise ValueError("the pool's buffers must be contiguous and of one device and size")
        widths = [buffer[0].numel() for buffer in buffers]
        return cls(
            addresses=torch.tensor([b.data_ptr() for b in buffers], device=first.device),
            widths=torch.tensor(widths, device=first.device),
            widest=max(widths),
            bits=8 * first.itemsize,
        )


_WORDS = {8: tl.int8, 16: tl.int16, 32: tl.int32}


def move_path_triton(rows: PoolRows, accepted: Acceptance, slots: Tensor) -> None:
    """Move the KV rows of the accepted path to the front, in all layers and in one launch.

    slots: int32 or int64 [bs, N], the slot of each node, consecutive along N. The row at
    slots[path[j]] goes to slots[j] for j up to the accepted length, and nothing else moves.
    """
    bs, steps = accepted.path.shape
    block_steps = triton.next_power_of_2(steps)
    block = max(32, 4096 // block_steps)
    grid = (triton.cdiv(rows.widest, block), len(rows.addresses), bs)
    move_rows_kernel[grid](
        rows.addresses,
        rows.widths,
        accepted.path,
        accepted.length,
        slots,
        accepted.path.stride(0),
        slots.stride(0),
        STEPS=steps,
        BLOCK_STEPS=block_steps,
        BLOCK=block,
        WORD=_WORDS[rows.bits],
        num_warps=4,
    )


def _ranked(transitions: Tensor, log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Children of every candidate, likeliest first: log-probabilities and candidates."""
    values = torch.nan_to_num(transitions, nan=-torch.inf, neginf=-torch.inf).clamp(max=0.0)
    exists = (log_probs[:, 1:] > -torch.inf).unsqueeze(2)
    values = torch.where(exists, values, -torch.inf)
    ordered, ranked = values.sort(dim=-1, descending=True, stable=True)
    return ordered, ranked
