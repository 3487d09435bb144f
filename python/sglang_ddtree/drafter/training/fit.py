"""``drafter fit``: first weights by least squares; training begins where a linear drafter ends.

A drafter with random weights learns how frequent words are long before its attention finds the
context; a short run ends about there. Here the first layer is solved for instead. It guesses the
hidden state that the target itself would have at each slot's place, from two vectors alone: the
target's state at the token before the anchor, and the anchor's embedding (EAGLE's regression,
arXiv 2401.15077, section 3, without its transformer layer). The layers after it are the target's
own, those that follow the last one read, and so are the norms and the features of that layer.

The first layer's heads are made to look where the regression does. Keys of the context, of the
anchor and of masks are told apart by three directions of the key projection, each on rotary
frequencies of its own; a mask's query is always the same vector, so it selects one of them. High
frequencies make the context's nearest token the likeliest by far. Values share one projection, the
subspace of ``kv_heads * head_dim`` dimensions that serves both vectors best. That gives slot 1's
guess in every slot; a third head tells the slots apart by their distance from the anchor, and the
MLP's neurons, gated by it, map the guess on to slot 2, slot 3, and those after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sglang_ddtree.drafter.data.samples import Sample
from sglang_ddtree.drafter.errors import DrafterError
from sglang_ddtree.drafter.model.config import DrafterConfig
from sglang_ddtree.drafter.model.layers import Attention, Layer, Shape, rotate
from sglang_ddtree.drafter.model.model import Drafter, DraftLayer
from sglang_ddtree.drafter.model.target import TargetFacts, read_tensors
from sglang_ddtree.drafter.objective.batches import collate, draw_anchors
from sglang_ddtree.drafter.objective.objective import Ends, block_inputs
from sglang_ddtree.drafter.weights.initialise import copy_target_layers

# Share of a mean diagonal entry that is added to a matrix of moments before it is inverted.
_RIDGE = 1e-5
# Logit of a key that a head of the first layer looks for with all its query.
_SHARPNESS = 32.0
# Root mean square of query and key projections. Their norms make them free of scale; a large one
# keeps an optimizer's first steps from undoing them.
_PROJECTION = 0.2
# Random part of a query and of a key, of rms 1 else: what the heads can learn from.
_QUERY_NOISE, _KEY_NOISE = 0.02, 0.1
# Argument of the MLP's gate where it is open.
_OPEN = 8.0
# Slots, or ranges of slots, that have a map of their own beside slot 1: 2, 3, 4 and later.
_STEPS = 3
# Blocks of a text that their maps are fitted to.
_BLOCKS = 64


@dataclass(frozen=True)
class Frequencies:
    """Rotary pairs of a head by what they tell apart, as vectors ``[head_dim]`` of rms 1.

    Attributes:
        nearest: a turn takes 9 to 200 tokens: which context token is the nearest.
        beside: a turn takes 6: is the anchor a certain number of slots away?
        beyond: a turn takes about 13: is it at least so many away?
        mask, anchor: hardly turn: what kind of key this is.
    """

    size: Shape
    nearest: Tensor
    beside: Tensor
    beyond: Tensor
    mask: Tensor
    anchor: Tensor

    @classmethod
    def of(cls, size: Shape) -> Frequencies:
        pairs = size.head_dim // 2
        turn = size.rope_theta ** (-torch.arange(pairs) / pairs)
        one = torch.arange(pairs)
        middle = int((turn[1:] - 0.47).abs().argmin()) + 1
        near = (turn < 0.75) & (turn > 0.03) & (one != middle)
        slow = (turn < 0.012).nonzero()[:, 0]
        half = slow[len(slow) // 2]

        def on(chosen: Tensor) -> Tensor:
            vector = torch.cat([chosen.float(), torch.zeros(pairs)])
            return vector * (size.head_dim / vector.sum()) ** 0.5

        slowest = one >= half
        masks = (one >= slow[0]) & ~slowest
        return cls(size, on(near), on(one == 0), on(one == middle), on(masks), on(slowest))

    def at(self, vector: Tensor, slots: float) -> Tensor:
        """``vector`` turned so that a query matches keys so many slots before it."""
        pairs = self.size.head_dim // 2
        angle = -slots * self.size.rope_theta ** (-torch.arange(pairs) / pairs)
        return rotate(vector, angle.cos().repeat(2), angle.sin().repeat(2))


class Moments:
    """Sums over captured positions that the regression needs, float64.

    Inputs are ``x = [context | anchor]``, ``[2 * hidden]``: the normalised features before an
    anchor and its normalised embedding. The output is the target's state at the anchor, without the
    mask's embedding, which the slot has from the beginning. Positions are weighted so that relative
    errors count.
    """

    def __init__(self, hidden: int) -> None:
        self.inputs = torch.zeros(2 * hidden, 2 * hidden, dtype=torch.float64)
        self.products = torch.zeros(2 * hidden, hidden, dtype=torch.float64)
        self.energy = torch.zeros(hidden, dtype=torch.float64)
        self.positions = 0

    def add(self, x: Tensor, state: Tensor, guess: Tensor) -> None:
        weight = state.square().mean(-1, keepdim=True).rsqrt()
        x, y = x * weight, (state - guess) * weight
        self.inputs += x.T @ x
        self.products += x.T @ y
        self.energy += y.square().sum(0)
        self.positions += len(x)


def tail_of(config: DrafterConfig, target: TargetFacts) -> range:
    """Target layers that follow the last one the drafter reads, one for each layer but the first.

    Raises:
        DrafterError: the drafter has another number of layers, or heads that can't share.
    """
    tail = range(config.target_layer_ids[-1] + 1, target.layers)
    if config.shape.layers != 1 + len(tail):
        last = target.layers - config.shape.layers
        raise DrafterError(
            f"a drafter of {config.shape.layers} layers that reads target layer "
            f"{config.target_layer_ids[-1]} can't be fitted: its layers but the first are the "
            f"{len(tail)} of the target that follow. Begin anew with 'drafter init "
            f"--target-layers ...,{last}', or train without 'drafter fit'"
        )
    if config.shape.head_dim < 32:
        raise DrafterError(
            f"heads of {config.shape.head_dim} dimensions can't be fitted: their rotary pairs are "
            "too few to tell the kinds of keys apart; 32 are enough. Train without 'drafter fit'"
        )
    if config.shape.heads < 2 * config.shape.kv_heads:
        raise DrafterError(
            f"{config.shape.heads} heads with {config.shape.kv_heads} KV heads can't be fitted: "
            "two heads must share each KV head, one for the context and one for the anchor"
        )
    return tail


@torch.no_grad()
def fit(
    model: Drafter, target: TargetFacts, ends: Ends, samples: Sequence[Sample], seed: int = 0
) -> float:
    """Give the drafter its first weights, in place.

    Args:
        ends: of the target, float32.
        samples: captured texts; tens of thousands of tokens are plenty.

    Returns:
        Share of the target's (weighted) energy that the first layer's guess misses, 0 to 1.

    Raises:
        DrafterError: see :func:`tail_of`; or the target's layers have other tensors or shapes.
    """
    config = model.config
    tail = tail_of(config, target)
    _take_from_target(model, target, tail)
    mask = ends.embed(torch.tensor(config.mask_token_id))
    layer = _layers(model)[0]
    moments, seen = Moments(config.shape.hidden), []
    for sample in samples:
        context, anchor, state = _pairs(model, ends, sample)
        moments.add(torch.cat([context, anchor], -1), state, mask)
        seen.append((context[::10], anchor[::10], state[::20]))
    if not moments.positions:
        raise DrafterError("the samples hold no token of the target's own")
    contexts, anchors, states = (torch.cat(part) for part in zip(*seen, strict=True))
    for copied in _layers(model)[1:]:
        _match_scores(copied, states)
    importance = model.norm.weight * ends.head.float().std(0)
    kinds = _kinds(contexts, anchors, layer.input_layernorm(mask))
    _look(layer.self_attn, kinds, layer.input_layernorm(mask), seed)
    missed = _answer(layer.self_attn, moments, importance, kinds)
    if config.shape.heads >= 3 * config.shape.kv_heads:
        _advance(model, ends, samples, importance, seed)
    return missed


def _layers(model: Drafter) -> list[DraftLayer]:
    return cast("list[DraftLayer]", list(model.layers))


def _take_from_target(model: Drafter, target: TargetFacts, tail: range) -> None:
    """The layers but the first, the norms around them, and features of the last layer read."""
    hidden = model.config.shape.hidden
    own = {n: w for n, w in model.state_dict().items() if not n.startswith("layers.0.")}
    # The drafter's layer i + 1 is the target's tail[i].
    shifted = {_renumber(n, -1): w for n, w in own.items()}
    copied = copy_target_layers(shifted, target.path, tail)
    norms = (f"layers.{tail[0]}.input_layernorm.weight", "norm.weight")
    found = read_tensors(Path(target.path), norms)
    needed = [f"layers.{i}.self_attn.q_proj.weight" for i in tail]
    lacking = [n for n in norms if n not in found]
    lacking += [n for n in needed if n not in read_tensors(Path(target.path), (n,))]
    if lacking:
        raise DrafterError(
            f"the target has no {lacking[0]}: only targets whose last layers are plain attention "
            "can be fitted; train without 'drafter fit'"
        )
    model.load_state_dict({_renumber(n, 1): w for n, w in copied.items()}, strict=False)
    model.fc.weight.zero_()
    model.fc.weight[:, -hidden:] = torch.eye(hidden)
    model.hidden_norm.weight.copy_(found[norms[0]])
    model.norm.weight.copy_(found[norms[1]])


def _renumber(name: str, by: int) -> str:
    if not name.startswith("layers."):
        return name
    _, index, rest = name.split(".", 2)
    return f"layers.{int(index) + by}.{rest}"


def _pairs(model: Drafter, ends: Ends, sample: Sample) -> tuple[Tensor, Tensor, Tensor]:
    """Context, anchor and the target's state, ``[positions, hidden]`` each, of every own token."""
    anchors = sample.loss_mask.nonzero()[:, 0]
    anchors = anchors[anchors > 0]
    features = sample.hidden_states.float()
    context = model.hidden_norm(model.fc(features[anchors - 1]))
    embeds = ends.embed(sample.input_ids[anchors].long())
    state = features[anchors][:, -model.config.shape.hidden :]
    return context, _layers(model)[0].input_layernorm(embeds), state


def _match_scores(layer: Layer, states: Tensor) -> None:
    """Query and key norms of a copied layer, where the target has none: its mean sizes instead."""
    attention, x = layer.self_attn, layer.input_layernorm(states)
    for name in ("q", "k"):
        norm = getattr(attention, f"{name}_norm")
        if norm.weight.eq(1).all():
            size = getattr(attention, f"{name}_proj")(x).square().mean().sqrt()
            norm.weight.fill_(float(size))


def _kinds(contexts: Tensor, anchors: Tensor, mask: Tensor) -> Tensor:
    """Directions ``[3, hidden]`` that are 1 on context, on anchors, on masks, and 0 on the others.

    By least squares on which of them a vector is.
    """
    vectors = torch.cat([contexts, anchors, mask.expand(len(contexts), -1)])
    truth = torch.zeros(len(vectors), 3)
    for column, rows in enumerate(truth.split((len(contexts), len(anchors), len(contexts)))):
        rows[:, column] = 1.0
    gram = vectors.T @ vectors
    ridge = 1e-2 * gram.diagonal().mean() * torch.eye(len(gram))
    return torch.linalg.solve(gram + ridge, vectors.T @ truth).T


def _look(attention: Attention, kinds: Tensor, mask: Tensor, seed: int) -> None:
    """Queries and keys.

    Of each KV head's group the first head looks at the context's nearest token, the second at the
    anchor. The third of group g looks at the anchor in slot g + 2 alone and at masks in the others;
    that of the last group looks at masks from slot g + 2 on.
    """
    size = attention.size
    on = Frequencies.of(size)
    context, anchor, masks = kinds
    anchor_key = 0.5 * on.anchor + 0.61 * (on.beside + on.beyond)
    key = on.nearest[:, None] * context + on.mask[:, None] * masks + anchor_key[:, None] * anchor
    queries, steps = [], _steps(size)
    for group in range(size.kv_heads):
        # The anchor's logit passes that of a block's masks half way between two slots.
        if group < steps - 1:
            choice = 0.93 * on.at(on.beside, group + 2) + 0.37 * on.mask
        else:
            choice = 0.95 * on.at(on.beyond, steps - 1.25) + 0.31 * on.mask
        queries += [on.nearest, on.anchor] + [choice] * (size.heads // size.kv_heads - 2)
    query = torch.cat([vector[:, None] * mask / mask.dot(mask) for vector in queries])
    generator = torch.Generator().manual_seed(seed)
    for weight, chosen, part in (
        (attention.k_proj.weight, key.repeat(size.kv_heads, 1), _KEY_NOISE),
        (attention.q_proj.weight, query, _QUERY_NOISE),
    ):
        noise = torch.randn(chosen.shape, generator=generator)
        made = chosen + part * size.hidden**-0.5 * noise
        weight.copy_(made * (_PROJECTION / made.square().mean().sqrt()))
    attention.q_norm.weight.fill_(_SHARPNESS / size.head_dim**0.5)
    attention.k_norm.weight.fill_(1.0)


def _steps(size: Shape) -> int:
    """How many slots, or ranges of slots, have a map of their own beside slot 1."""
    return min(size.kv_heads, _STEPS)


def _answer(attention: Attention, moments: Moments, importance: Tensor, kinds: Tensor) -> float:
    """Values and outputs of each group's first two heads; its last value tells anchors or masks."""
    size = attention.size
    rank = size.head_dim - 1
    values, outputs, missed = reduced_rank(moments, importance, size.kv_heads * rank)
    by_group = attention.v_proj.weight.view(size.kv_heads, size.head_dim, -1)
    by_group[:, :rank] = values.view(size.kv_heads, rank, -1)
    by_group[:, rank] = kinds[1]
    by_group[_steps(size) - 1 :, rank] = kinds[2]
    attention.o_proj.weight.zero_()
    by_head = attention.o_proj.weight.view(size.hidden, size.kv_heads, -1, size.head_dim)
    by_head[:, :, :2, :rank] = outputs.view(2, size.kv_heads, rank, -1).permute(3, 1, 0, 2)
    return missed


def _advance(
    model: Drafter, ends: Ends, samples: Sequence[Sample], importance: Tensor, seed: int
) -> None:
    """The MLP takes the guess of slot 1 on to the later slots, by a linear map for each.

    Which slot it is comes from each group's third head: its last value adds to the residual stream
    along a direction that no guess has, which opens the gates of that slot's neurons.
    """
    config, layer = model.config, _layers(model)[0]
    size, steps = config.shape, _steps(config.shape)
    outputs = layer.self_attn.o_proj.weight
    free = torch.linalg.svd(outputs).U[:, -steps:].T  # orthogonal to all that the heads add
    mask = ends.embed(torch.tensor(config.mask_token_id))
    free = free - (free @ mask)[:, None] * mask / mask.dot(mask)
    free = torch.linalg.qr(free.T).Q.T
    by_head = outputs.view(size.hidden, size.kv_heads, -1, size.head_dim)
    guesses = torch.cat([x[:, 1] for x, _, _ in _blocks(model, ends, samples[:20], seed)])
    by_head[:, :steps, 2, -1] = free.T * guesses.square().mean().sqrt()
    mlp, per_step = layer.mlp, size.intermediate // steps
    # What opens the gates of one slot closes those of the others.
    gates = _OPEN * (2 * free - free.sum(0))
    mlp.gate_proj.weight[: steps * per_step] = gates.repeat_interleave(per_step, 0)
    mlp.down_proj.weight.zero_()
    # One regression for all slots and maps, since a gate is never quite shut.
    inputs = torch.zeros(steps * size.hidden, steps * size.hidden, dtype=torch.float64)
    products = torch.zeros(steps * size.hidden, size.hidden, dtype=torch.float64)
    count = 0
    for block, states, valid in _blocks(model, ends, samples, seed):
        x, y = block[:, 1:][valid[:, 1:]], states[:, 1:][valid[:, 1:]]
        normed = layer.post_attention_layernorm(x)
        opened = F.silu(normed @ gates.T)
        weight = y.square().mean(-1, keepdim=True).rsqrt()
        gated = ((opened[..., None] * normed[:, None]).flatten(1) * weight).double()
        inputs += gated.T @ gated
        products += gated.T @ ((y - x) * weight).double()
        count += len(x)
    # Ridge: what a map of so many inputs would learn from noise in so few examples.
    ridge = len(inputs) / count * inputs.diagonal().mean() * torch.eye(len(inputs))
    solved = torch.linalg.solve(inputs + ridge, products)
    for step, whole in enumerate(solved.split(size.hidden)):
        own = slice(step * size.hidden, (step + 1) * size.hidden)
        up, down = _low_rank(whole, (inputs + ridge)[own, own], importance, per_step)
        rows = slice(step * per_step, step * per_step + len(up))
        mlp.up_proj.weight[rows], mlp.down_proj.weight[:, rows] = up, down


def _blocks(
    model: Drafter, ends: Ends, samples: Sequence[Sample], seed: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Slots of blocks drawn from the samples, after the first layer's attention.

    Yields:
        ``x [A, block, hidden]``, the target's state that slot k stands for (that of the token
        before it) of the same shape, and which slots have one, bool ``[A, block]``.
    """
    config, rng = model.config, np.random.default_rng(seed)
    for sample in samples:
        drawn = draw_anchors(sample.loss_mask.numpy(), _BLOCKS, rng)
        if not len(drawn):
            continue
        batch = collate([sample], [drawn], len(drawn))
        tokens = batch.tokens.gather(1, batch.anchors)
        embeds = ends.embed(block_inputs(tokens, config.block, config.mask_token_id))
        features = batch.features.float()
        view = model.view(features, embeds, batch.anchors)
        context = model.hidden_norm(model.fc(features))
        x = _layers(model)[0].attend(embeds, context, view)[0]
        places = batch.anchors[0][:, None] + torch.arange(config.block) - 1
        valid = (places >= 0) & (places < len(sample))
        states = features[0, :, -config.shape.hidden :]
        yield x, states[places.clamp(0, len(sample) - 1)], valid


def _low_rank(
    solved: Tensor, inputs: Tensor, importance: Tensor, rank: int
) -> tuple[Tensor, Tensor]:
    """``up [r, hidden]`` and ``down [hidden, r]``, r at most ``rank``.

    ``up.T @ down.T`` is ``solved [hidden, hidden]``, or as near to it as may be for inputs with
    second moments ``inputs [hidden, hidden]``.
    """
    root = torch.linalg.cholesky(inputs)
    scale = importance.double() / importance.double().mean()
    left, sizes, right = torch.linalg.svd(root.T @ solved * scale, full_matrices=False)
    half = sizes[:rank].sqrt()
    up = torch.linalg.solve(root.T, left[:, :rank] * half).T
    down = (half[:, None] * right[:rank] / scale).T
    # As large on one side as on the other.
    balance = (down.norm(dim=0) / up.norm(dim=1)).sqrt()
    return (up * balance[:, None]).float(), (down / balance).float()


def reduced_rank(
    moments: Moments, importance: Tensor, rank: int, rounds: int = 60
) -> tuple[Tensor, Tensor, float]:
    """Solve ``y ~ outputs[0].T @ values @ context + outputs[1].T @ values @ anchor``.

    Begins with the singular vectors of the full solution and improves ``values`` by L-BFGS, the
    outputs being solved for exactly at every point.

    Args:
        importance: ``[hidden]``, what an error of each output dimension counts.

    Returns:
        ``values [rank, hidden]``, ``outputs [2, rank, hidden]``, and the share of energy missed.
    """
    count, hidden = moments.positions, len(moments.energy)
    inputs, scale = moments.inputs / count, importance.double() / importance.double().norm()
    inputs = inputs + _RIDGE * inputs.diagonal().mean() * torch.eye(2 * hidden)
    products = moments.products / count * scale
    energy = float(moments.energy / count @ scale.square())
    full = torch.linalg.solve(inputs, products)
    halves = inputs[:hidden, :hidden], inputs[hidden:, hidden:]
    mean = sum(half / half.diagonal().mean() for half in halves)
    root = torch.linalg.cholesky(mean + 1e-4 * torch.eye(hidden))
    both = torch.cat([full[:hidden], full[hidden:]], 1)
    singular = torch.linalg.svd(root.T @ both, full_matrices=False)[0][:, :rank]
    values = torch.linalg.solve(root.T, singular)

    def outputs_of(values: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs for ``values [hidden, rank]``, and the energy they explain."""
        wide = torch.block_diag(values, values).to(inputs.dtype)
        gram = wide.T @ inputs @ wide
        gram = gram + _RIDGE * gram.diagonal().mean() * torch.eye(len(gram))
        right = wide.T @ products
        solved = torch.linalg.solve(gram, right)
        return solved, (right * solved).sum()

    with torch.enable_grad():
        values = values.clone(memory_format=torch.contiguous_format).requires_grad_()
        optimizer = torch.optim.LBFGS(
            [values], max_iter=rounds, history_size=20, line_search_fn="strong_wolfe"
        )

        def missed() -> Tensor:
            optimizer.zero_grad()
            loss = 1 - outputs_of(values)[1] / energy
            loss.backward()
            return loss

        optimizer.step(missed)
    values = values.detach()
    outputs, explained = outputs_of(values)
    pairs = (outputs / scale).view(2, rank, hidden)
    # Each of the rank's dimensions is as large on one side as on the other.
    balance = (pairs.square().sum((0, 2)).sqrt() / values.norm(dim=0)).sqrt()
    share = 1 - float(explained) / energy
    return (values * balance).T.float(), (pairs / balance[:, None]).float(), share
