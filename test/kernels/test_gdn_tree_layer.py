"""A whole layer over trees: verification, commit, and the layer of transformers."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from sglang_ddtree.ops.gdn_tree import (
    RecurrentLayer,
    RecurrentShape,
    TreeRecurrenceMetadata,
    commit,
    verify,
)
from sglang_ddtree.ops.gdn_tree.oracle import conv_oracle, recurrence_oracle
from sglang_ddtree.tree import DraftTree
from unit.gdn_tree_cases import SMALL, case_of, grown_tree, relative
from unit.strategies import tree_of

GDN = RecurrentShape(k_heads=2, v_heads=6, k_dim=8, v_dim=4)
KDA = RecurrentShape(k_heads=3, v_heads=3, k_dim=8, v_dim=8, channel_decay=True)


def layer_of(shape: RecurrentShape, dtype: torch.dtype = torch.float32) -> RecurrentLayer:
    generator = torch.Generator().manual_seed(1)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(dtype)

    return RecurrentLayer(
        shape,
        conv_weights=normal(shape.channels, shape.kernel_size),
        bias=normal(shape.channels),
        activation="silu",
        A_log=normal(shape.v_heads),
        dt_bias=normal(shape.v_heads * (shape.k_dim if shape.channel_decay else 1)) - 2,
    )


@dataclass(frozen=True, eq=False)
class Tokens:
    """What a layer's projections give for some tokens."""

    mixed_qkv: Tensor
    a: Tensor
    b: Tensor

    def pick(self, index: Tensor | slice) -> Tokens:
        return Tokens(self.mixed_qkv[:, index], self.a[:, index], self.b[:, index])


def tokens_of(shape: RecurrentShape, bs: int, count: int, seed: int) -> Tokens:
    generator = torch.Generator().manual_seed(seed)
    a_width = shape.v_heads * (shape.k_dim if shape.channel_decay else 1)
    widths = (shape.channels, a_width, shape.v_heads)
    return Tokens(*(torch.randn(bs, count, width, generator=generator) for width in widths))


def walk(
    layer: RecurrentLayer,
    tokens: Tokens,
    request: int,
    history: Tensor,
    state: Tensor,
    parents: list,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, states and windows of one request, all by the oracles."""
    conv, windows = conv_oracle(
        tokens.mixed_qkv[request], history, layer.conv_weights, layer.bias, parents
    )
    gates = layer.gates(tokens.a[request].double(), tokens.b[request].double())
    out, states = recurrence_oracle(*layer.shape.split(conv), *gates, state, parents)
    return out, states, windows


def empty(shape: RecurrentShape, bs: int) -> tuple[Tensor, Tensor]:
    """State and window before the first token."""
    return (
        torch.zeros(bs, shape.v_heads, shape.v_dim, shape.k_dim),
        torch.zeros(bs, shape.channels, shape.kernel_size - 1),
    )


def chain(bs: int, width: int) -> DraftTree:
    return tree_of([list(range(-1, width - 1))] * bs, [[0] * width] * bs, width)


@pytest.mark.parametrize("shape", [GDN, KDA], ids=["gdn", "kda"])
def test_a_tree_below_a_short_prefix(shape: RecurrentShape) -> None:
    """Two tokens are committed as a chain; the tree continues from them."""
    layer, tree = layer_of(shape), grown_tree(bs=2, budget=50)
    prefix = tokens_of(shape, 2, 2, seed=2)
    state, window = empty(shape, 2)
    above = TreeRecurrenceMetadata.of(chain(2, 2), 4)
    _, stash = verify(layer, prefix.mixed_qkv, prefix.a, prefix.b, state, window, above)
    state, window = commit(stash, state, window, above, torch.tensor([1, 1]))

    tokens, metadata = tokens_of(shape, 2, tree.width, seed=3), TreeRecurrenceMetadata.of(tree, 4)
    out, stash = verify(layer, tokens.mixed_qkv, tokens.a, tokens.b, state, window, metadata)
    leaf = torch.tensor([50, 4])
    new_state, new_window = commit(stash, state, window, metadata, leaf)
    for request, parents in enumerate(tree.parent.tolist()):
        start = walk(layer, prefix, request, prefix.mixed_qkv[0, :0], state[request] * 0, [-1, 0])
        history = prefix.mixed_qkv[request]
        expected = walk(layer, tokens, request, history, start[1][-1], parents)
        assert relative(out[request], expected[0]) < 1e-5
        assert relative(new_state[request], expected[1][leaf[request]]) < 1e-5
        assert torch.equal(new_window[request].double(), expected[2][leaf[request]])


@pytest.mark.parametrize("shape", [GDN, KDA], ids=["gdn", "kda"])
def test_many_commits_do_not_drift(shape: RecurrentShape) -> None:
    """A hundred trees, each committed at some node, against one chain of the accepted tokens."""
    layer, steps = layer_of(shape), 100
    state, window = empty(shape, 1)
    accepted: list[Tokens] = []
    outs: list[Tensor] = []
    for step in range(steps):
        tree = grown_tree(bs=1, budget=12, depths=6, seed=step)
        metadata = TreeRecurrenceMetadata.of(tree, 4)
        tokens = tokens_of(shape, 1, tree.width, seed=100 + step)
        out, stash = verify(layer, tokens.mixed_qkv, tokens.a, tokens.b, state, window, metadata)
        leaf = torch.tensor([step % tree.width])
        state, window = commit(stash, state, window, metadata, leaf)
        path = metadata.on_path(leaf)[0].nonzero().flatten()
        accepted.append(tokens.pick(path))
        outs.append(out[0, path])
    text = Tokens(
        *(torch.cat([getattr(t, n) for t in accepted], 1) for n in ("mixed_qkv", "a", "b"))
    )
    count = text.mixed_qkv.shape[1]
    assert count > 3 * steps
    zero_state = empty(shape, 1)[0][0]
    nothing = text.mixed_qkv[0, :0]
    expected = walk(layer, text, 0, nothing, zero_state, list(range(-1, count - 1)))
    assert relative(torch.cat(outs), expected[0]) < 1e-5
    assert relative(state[0], expected[1][-1]) < 1e-5
    assert torch.equal(window[0].double(), expected[2][-1])


def test_checkpoints_on_the_path_do_not_disturb_the_commit() -> None:
    """A prefix-cache checkpoint is the commit of an earlier node of the same path."""
    layer, tree = layer_of(GDN), chain(1, 8)
    metadata, tokens = TreeRecurrenceMetadata.of(tree, 4), tokens_of(GDN, 1, 8, seed=4)
    state, window = empty(GDN, 1)
    _, stash = verify(layer, tokens.mixed_qkv, tokens.a, tokens.b, state, window, metadata)
    half = commit(stash, state, window, metadata, torch.tensor([3]))
    rest, below = tokens.pick(slice(4, None)), TreeRecurrenceMetadata.of(chain(1, 4), 4)
    _, later = verify(layer, rest.mixed_qkv, rest.a, rest.b, *half, below)
    resumed = commit(later, *half, below, torch.tensor([3]))
    direct = commit(stash, state, window, metadata, torch.tensor([7]))
    assert relative(resumed[0], direct[0].double()) < 1e-6
    assert torch.equal(resumed[1], direct[1])


class Ungated(torch.nn.Module):
    """In place of the gated norm, to see what goes into it."""

    def forward(self, out: Tensor, gate: Tensor) -> Tensor:
        return out


@pytest.fixture(scope="module")
def qwen3_next() -> torch.nn.Module:
    """The linear-attention module of transformers, without its gated norm and projection."""
    modeling = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")
    config = modeling.Qwen3NextConfig(
        hidden_size=32,
        linear_num_key_heads=GDN.k_heads,
        linear_num_value_heads=GDN.v_heads,
        linear_key_head_dim=GDN.k_dim,
        linear_value_head_dim=GDN.v_dim,
        linear_conv_kernel_dim=GDN.kernel_size,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    torch.manual_seed(5)
    module = modeling.Qwen3NextGatedDeltaNet(config, 0).eval()
    module.norm = Ungated()
    module.out_proj = torch.nn.Identity()
    return module


def test_a_layer_of_transformers_on_a_chain(qwen3_next: torch.nn.Module) -> None:
    """Prefix and chain in one causal pass there; a commit of the prefix and a verification here."""
    hidden = torch.randn(2, 30, 32, generator=torch.Generator().manual_seed(6)) * 3
    with torch.no_grad():
        expected = qwen3_next(hidden).unflatten(-1, (GDN.v_heads, GDN.v_dim))
        q, k, v, _, b, a = qwen3_next.fix_query_key_value_ordering(
            qwen3_next.in_proj_qkvz(hidden), qwen3_next.in_proj_ba(hidden)
        )
    tokens = Tokens(torch.cat([x.flatten(2) for x in (q, k, v)], -1), a, b)
    layer = RecurrentLayer(
        GDN,
        conv_weights=qwen3_next.conv1d.weight.detach().squeeze(1),
        bias=None,
        activation=qwen3_next.activation,
        A_log=qwen3_next.A_log.detach(),
        dt_bias=qwen3_next.dt_bias.detach(),
    )
    state, window = empty(GDN, 2)
    position = 0
    for count in (2, 1, 11, 16):
        part = tokens.pick(slice(position, position + count))
        metadata = TreeRecurrenceMetadata.of(chain(2, count), 4)
        out, stash = verify(layer, part.mixed_qkv, part.a, part.b, state, window, metadata)
        assert relative(out, expected[:, position : position + count].double()) < 1e-5
        last = torch.full((2,), count - 1)
        state, window = commit(stash, state, window, metadata, last)
        position += count


@pytest.mark.parametrize("function", ["recurrent", "chunk"])
def test_functions_of_transformers_on_every_path_of_a_tree(function: str) -> None:
    modeling = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")
    rule = getattr(modeling, f"torch_{function}_gated_delta_rule")
    case = case_of(grown_tree(bs=1, budget=30), SMALL, torch.float32, "fast", seed=7)
    result = case.run()
    heads = case.v.shape[2]
    for node in range(0, 31, 3):
        path = case.metadata.ancestors[0, node]
        q, k = (x[:, path].repeat_interleave(heads, 2) for x in (case.q, case.k))
        out, state = rule(
            q,
            k,
            case.v[:, path],
            g=case.log_decay[:, path],
            beta=case.beta[:, path],
            initial_state=case.state.mT,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        assert relative(result.out[0, path], out[0].double()) < 1e-5
        rebuilt = case.state_after(result, torch.tensor([node]))
        assert relative(rebuilt, state.mT.double()) < 1e-5


def test_no_activation_and_an_unknown_one() -> None:
    layer, tree = layer_of(GDN), chain(1, 3)
    plain = RecurrentLayer(GDN, layer.conv_weights, layer.bias, None, layer.A_log, layer.dt_bias)
    tokens = tokens_of(GDN, 1, 3, seed=8)
    state, window = empty(GDN, 1)
    metadata = TreeRecurrenceMetadata.of(tree, 4)
    out, _ = verify(plain, tokens.mixed_qkv, tokens.a, tokens.b, state, window, metadata)
    padded = functional.pad(tokens.mixed_qkv.mT, (3, 0))
    conv = functional.conv1d(
        padded, layer.conv_weights.unsqueeze(1), layer.bias, groups=GDN.channels
    )
    gates = layer.gates(tokens.a[0], tokens.b[0])
    expected, _ = recurrence_oracle(*GDN.split(conv[0].mT), *gates, state[0], [-1, 0, 1])
    assert relative(out[0], expected) < 1e-5
    with pytest.raises(ValueError, match="gelu"):
        RecurrentLayer(GDN, layer.conv_weights, None, "gelu", layer.A_log, layer.dt_bias)
