"""The short convolution over a tree against a walk up the parents and into the prefix."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from sglang_ddtree.ops.gdn_tree import TreeRecurrenceMetadata, path_window, tree_conv
from sglang_ddtree.ops.gdn_tree.oracle import conv_oracle
from sglang_ddtree.tree import DraftTree
from unit.gdn_tree_cases import grown_tree, trees
from unit.strategies import properties, tree_of


@dataclass(frozen=True, eq=False)
class Case:
    """A batch of trees, each below a prefix of its own length."""

    tree: DraftTree
    metadata: TreeRecurrenceMetadata
    x: Tensor
    histories: list[Tensor]
    window: Tensor
    weight: Tensor
    bias: Tensor | None

    def run(self, silu: bool = True) -> Tensor:
        return tree_conv(self.x, self.window, self.weight, self.bias, self.metadata, silu=silu)

    def walk(self, request: int, silu: bool = True) -> tuple[Tensor, Tensor]:
        parents = self.tree.parent[request].tolist()
        history = self.histories[request]
        return conv_oracle(self.x[request], history, self.weight, self.bias, parents, silu=silu)


def case_of(
    tree: DraftTree,
    kernel_size: int,
    prefix_lens: list[int],
    dtype: torch.dtype = torch.float64,
    bias: bool = True,
    seed: int = 0,
) -> Case:
    """Prefixes may be shorter than the window, whose older columns are then zeros."""
    generator = torch.Generator().manual_seed(seed)
    channels = 6

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)

    histories = [normal(length, channels) for length in prefix_lens]
    window = torch.zeros(tree.bs, channels, kernel_size - 1, dtype=dtype)
    for request, history in enumerate(histories):
        kept = min(len(history), kernel_size - 1)
        if kept:
            window[request, :, -kept:] = history[-kept:].mT
    return Case(
        tree,
        TreeRecurrenceMetadata.of(tree, kernel_size),
        normal(tree.bs, tree.width, channels),
        histories,
        window,
        normal(channels, kernel_size),
        normal(channels) if bias else None,
    )


@st.composite
def cases(draw: st.DrawFn, dtype: torch.dtype = torch.float64) -> Case:
    tree = draw(trees())
    prefix_lens = [draw(st.integers(0, 7)) for _ in range(tree.bs)]
    kernel_size, bias = draw(st.integers(2, 5)), draw(st.booleans())
    return case_of(tree, kernel_size, prefix_lens, dtype, bias, draw(st.integers(0, 2**32)))


@given(cases(), st.booleans())
@properties(80)
def test_every_node_reads_its_ancestors_and_the_prefix(case: Case, silu: bool) -> None:
    out = case.run(silu)
    for request in range(case.tree.bs):
        assert (out[request] - case.walk(request, silu)[0]).abs().max() < 1e-12


@given(cases())
@properties(80)
def test_the_window_after_any_node(case: Case) -> None:
    walks = [case.walk(request)[1] for request in range(case.tree.bs)]
    for index in range(case.tree.width):
        # Another node for each request of the batch.
        node = torch.tensor([(index + 5 * r) % case.tree.width for r in range(case.tree.bs)])
        windows = path_window(case.x, case.window, case.metadata, node)
        for request, expected in enumerate(walks):
            assert torch.equal(windows[request], expected[node[request]])


@pytest.mark.parametrize("kernel_size", [2, 3, 4])
def test_a_chain_is_the_causal_convolution_of_the_whole_sequence(kernel_size: int) -> None:
    tree = tree_of([list(range(-1, 9))], [[0] * 10], 10)
    case = case_of(tree, kernel_size, [6])
    sequence = torch.cat([case.histories[0], case.x[0]]).mT
    padded = functional.pad(sequence, (kernel_size - 1, 0)).unsqueeze(0)
    expected = functional.conv1d(padded, case.weight.unsqueeze(1), case.bias, groups=6)
    assert torch.allclose(case.run(silu=False)[0], expected[0, :, 6:].mT, atol=1e-12)


def test_a_layer_without_a_convolution() -> None:
    case = case_of(grown_tree(bs=2, budget=9), 1, [0, 3])
    assert case.metadata.window_len == 0
    expected = case.x * case.weight[:, 0] + case.bias
    assert torch.allclose(case.run(silu=False), expected, atol=1e-12)
    node = torch.tensor([4, 0])
    assert path_window(case.x, case.window, case.metadata, node).shape == (2, 6, 0)


def test_minus_one_is_the_committed_window() -> None:
    case = case_of(grown_tree(bs=3, budget=20), 4, [9, 2, 0])
    windows = path_window(case.x, case.window, case.metadata, torch.tensor([-1, 7, -1]))
    assert torch.equal(windows[[0, 2]], case.window[[0, 2]])
    assert torch.equal(windows[1], case.walk(1)[1][7])


def test_windows_of_many_layers_at_once() -> None:
    case = case_of(grown_tree(bs=2, budget=20), 4, [1, 5])
    node = torch.tensor([20, 3])
    windows = path_window(
        torch.stack([case.x, -case.x]),
        torch.stack([case.window, -case.window]),
        case.metadata,
        node,
    )
    one = path_window(case.x, case.window, case.metadata, node)
    assert torch.equal(windows, torch.stack([one, -one]))


def test_half_precision_accumulates_in_float32_and_copies_windows() -> None:
    case = case_of(grown_tree(bs=1, budget=40), 4, [2], dtype=torch.bfloat16)
    out = case.run()
    expected, windows = case.walk(0)
    assert out.dtype == torch.bfloat16
    assert torch.allclose(out[0].double(), expected, rtol=2**-8, atol=1e-6)
    window = path_window(case.x, case.window, case.metadata, torch.tensor([33]))
    assert window.dtype == torch.bfloat16
    assert torch.equal(window[0].double(), windows[33])


def test_another_kernel_size_is_refused() -> None:
    case = case_of(grown_tree(bs=1, budget=3), 4, [2])
    with pytest.raises(ValueError, match="kernel size 4, got 3"):
        tree_conv(case.x, case.window, case.weight[:, 1:], None, case.metadata)
