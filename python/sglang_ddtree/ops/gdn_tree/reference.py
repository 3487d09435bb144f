"""The gated delta rule over a tree in plain torch: the oracle of every kernel.

With S0 (dk x dv) the committed state, g the log-decays and G their sums over root..node, a node's
state is

    S_i = exp(G_i) S0 + sum_{j on the path to i} exp(G_i - G_j) k_j u_j^T

so that one vector u_j a node, of dv values, stands for its state. Inserting S_parent into the delta
rule gives the equations solved here (the WY form of the chunked layer, arXiv 2412.06464, with the
causal mask replaced by the ancestor mask and the prefix sums by path sums):

    u_i = beta_i (v_i - exp(G_i) S0^T k_i - sum_{j above i} exp(G_i - G_j) (k_j . k_i) u_j)
    o_i = exp(G_i) S0^T q_i + sum_{j on the path to i} exp(G_i - G_j) (k_j . q_i) u_j

Nodes are in topological order, so the first is one unit lower-triangular solve. Nothing of a node
enters another that is not its descendant.

Decays: G_i - G_j is never formed as a difference. Where j is no ancestor it may be positive and
overflow, and steps of exp(-50) make the sums so large that the digits that matter are lost (2e-4 of
the decay in float32 on a chain of 255 nodes). It is summed directly instead, over the nodes that
are on the path to i and not on the path to j: terms of one sign. The stash keeps each node's g, not
G, for the same reason.

A decay is a number a head, or a number a channel of the key (KDA); the latter stays inside the
product of the keys, as exp(G_i) and exp(-G_j) cannot be split without overflow.

Mamba2 / SSD is the same recurrence without the delta term (`delta=False`): k = B, q = C, v = dt x,
g = dt A, beta = 1, scale = 1; groups of heads share B and C as v heads share a k head here.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sglang_ddtree.ops.gdn_tree.metadata import TreeRecurrenceMetadata

# Zero after exp in float64 too, yet finite: -inf times a zero of the mask would be NaN.
LOG_ZERO = -1e4


class Recurrence(NamedTuple):
    """Result of `tree_recurrence`: the output, and what rebuilds the state of any node.

    out: [bs, N, H, dv] in v's dtype.
    keys: [bs, N, Hk, dk], normalised where the layer does. updates: u, [bs, N, H, dv].
    log_decay: g, [bs, N, H] or [bs, N, H, dk], at least LOG_ZERO. All in at least float32.
    """

    out: Tensor
    keys: Tensor
    updates: Tensor
    log_decay: Tensor


def tree_recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor,
    metadata: TreeRecurrenceMetadata,
    *,
    scale: float | None = None,
    l2norm: bool = True,
    delta: bool = True,
) -> Recurrence:
    """Outputs of all nodes of a tree, each from its own path, and the stash of the recurrence.

    q, k: [bs, N, Hk, dk]. v: [bs, N, H, dv], H a multiple of Hk; v head h reads k head
        h // (H / Hk).
    log_decay: [bs, N, H], or [bs, N, H, dk] for a decay a channel; not positive, -inf for a reset.
    beta: [bs, N, H], strength of the update.
    state: [bs, H, dv, dk] before the root, in the layout of `MambaPool.State.temporal`.
    scale: of q, dk ** -0.5 by default. l2norm: normalise q and k, x / sqrt(|x|^2 + 1e-6), as the
        layers do inside their kernels (linear/fused_sigmoid_gating_recurrent.py:459 @0.5.23).
    delta: subtract what the state already predicts; without it the layer is Mamba2's.

    Computes in float32, or float64 for such inputs. Memory is O(bs H N^2), times dk for a decay a
    channel. Raises ValueError where v heads do not group over k heads.
    """
    acc = torch.promote_types(q.dtype, torch.float32)
    heads, k_heads = v.shape[2], k.shape[2]
    if heads % k_heads:
        raise ValueError(f"{heads} v heads are no multiple of {k_heads} k heads")
    q, k = q.to(acc), k.to(acc)
    if l2norm:
        q, k = _normalised(q), _normalised(k)
    log_decay = log_decay.to(acc).clamp(min=LOG_ZERO)

    q_rows, k_rows = _by_head(q, heads), _by_head(k, heads)  # [bs, H, N, dk]
    strength = beta.to(acc).mT.unsqueeze(-1)  # [bs, H, N, 1]
    decay = _by_head(log_decay if log_decay.dim() == 4 else log_decay.unsqueeze(-1), heads)
    from_root, between = _path_decays(decay, metadata.ancestors)
    s0 = state.to(acc).mT  # [bs, H, dk, dv]

    u = _by_head(v.to(acc), heads)
    if delta:
        u = u - (from_root * k_rows) @ s0
        system = strength * _decayed_products(k_rows, k_rows, between)
        u = torch.linalg.solve_triangular(system, strength * u, upper=False, unitriangular=True)
    else:
        u = strength * u
    out = (from_root * q_rows) @ s0 + _decayed_products(q_rows, k_rows, between) @ u
    out = out * (q.shape[-1] ** -0.5 if scale is None else scale)
    return Recurrence(
        out=out.transpose(1, 2).to(v.dtype),
        keys=k,
        updates=u.transpose(1, 2),
        log_decay=log_decay,
    )


def path_state(
    state: Tensor,
    keys: Tensor,
    updates: Tensor,
    log_decay: Tensor,
    metadata: TreeRecurrenceMetadata,
    node: Tensor,
) -> Tensor:
    """The state after `node`, rebuilt from the stash: what commit and checkpoints write.

    state: [..., bs, H, dv, dk], the one that the tree was verified from. keys, updates, log_decay:
        as in `Recurrence`, with the same leading dimensions, such as layers.
    node: int64 [bs], any node of the tree; -1 returns the state as it is.
    Returns [..., bs, H, dv, dk] in the state's dtype, computed in at least float32.
    """
    acc = torch.promote_types(updates.dtype, torch.float32)
    on_path = metadata.on_path(node)[..., None, None]  # [bs, N, 1, 1]
    per_head = log_decay.dim() < updates.dim()
    decay = (log_decay.unsqueeze(-1) if per_head else log_decay).to(acc)
    # Nodes of a path are in index order, so what decays an update is the sum over later ones.
    since = torch.where(on_path, decay, 0).flip(-3).cumsum(-3).flip(-3)
    after = torch.cat([since[..., 1:, :, :], torch.zeros_like(since[..., :1, :, :])], -3)
    kept = torch.where(on_path, after.exp(), 0)
    grouped = keys.to(acc).repeat_interleave(updates.shape[-2] // keys.shape[-2], dim=-2)
    gained = torch.einsum("...nhv,...nhk->...hvk", updates.to(acc), grouped * kept)
    decayed = state.to(acc) * since[..., 0, :, None, :].exp()
    return (decayed + gained).to(state.dtype)


def _normalised(x: Tensor) -> Tensor:
    return x / torch.sqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def _by_head(x: Tensor, heads: int) -> Tensor:
    """[bs, N, Hk or H, d] -> [bs, H, N, d]."""
    return x.transpose(1, 2).repeat_interleave(heads // x.shape[2], dim=1)


def _path_decays(decay: Tensor, ancestors: Tensor) -> tuple[Tensor, Tensor]:
    """Decays from the root's predecessor and between nodes; c is 1 or dk.

    decay: [bs, H, N, c], logarithms. ancestors: bool [bs, N, N].
    Returns exp(G_i) [bs, H, N, c] and, for j on the path to i, exp(G_i - G_j) [bs, H, c, N, N],
    0 for all other j.
    """
    on_path = ancestors.unsqueeze(1).to(decay.dtype)  # [bs, 1, N, N]
    from_root = (on_path @ decay).exp()
    on_path = on_path.unsqueeze(1)
    to_node = on_path * decay.mT.unsqueeze(-2)  # row i: g of the path to i
    difference = to_node @ (1 - on_path).mT
    hidden = ~ancestors[:, None, None]
    return from_root, difference.masked_fill(hidden, float("-inf")).exp()


def _decayed_products(rows: Tensor, keys: Tensor, between: Tensor) -> Tensor:
    """rows_i . (between_ij keys_j): [bs, H, N, N] from [bs, H, N, dk] and [bs, H, c, N, N]."""
    if between.shape[2] == 1:
        return rows @ keys.mT * between.squeeze(2)
    return torch.einsum("bhic,bhjc,bhcij->bhij", rows, keys, between)
