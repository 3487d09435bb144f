"""Fresh random inputs for every kernel, and its largest error against float64 torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_ddtree.ops import dispatch
from sglang_ddtree.ops.dispatch import Device
from sglang_ddtree.ops.gdn_tree import RecurrentLayer, RecurrentShape, Stash, commit, verify
from sglang_ddtree.ops.gdn_tree import TreeRecurrenceMetadata as Recurrence
from sglang_ddtree.ops.gdn_tree.paths import TreePaths
from sglang_ddtree.ops.tree_attention import TreeAttentionMetadata, tree_attention
from sglang_ddtree.ops.tree_attention.latent import latent_tree_attention
from sglang_ddtree.ops.tree_attention.paged import PagedTree, SplitWorkspace
from sglang_ddtree.tree import Candidates, DraftTree, GrowthPolicy, accept, grow

HALF = 3e-2  # bfloat16 outputs of order one


@dataclass(frozen=True)
class Result:
    """One kernel on one set of inputs; `error` against a float64 reference, inf for NaN."""

    name: str
    error: float
    allowed: float

    @property
    def passed(self) -> bool:
        return self.error <= self.allowed

    def line(self) -> str:
        return f"{'ok    ' if self.passed else 'FAILED'} {self.name}: {self.error:.2e}"


def random_tree(bs: int, budget: int, generator: torch.Generator) -> DraftTree:
    """Grown by the reference on the CPU."""
    candidates = Candidates.from_logits(torch.randn(bs, 15, 64, generator=generator) * 2, 8)
    return grow(candidates, torch.randint(0, 64, (bs,), generator=generator), GrowthPolicy(budget))


def on_device(tree: DraftTree, device: str) -> DraftTree:
    return DraftTree(*(x.to(device) for x in vars(tree).values()))


def paged(
    tree: DraftTree, lens: list[int], page: int, generator: torch.Generator, device: str
) -> tuple[PagedTree, TreeAttentionMetadata, int]:
    """Shuffled pages in the two forms of kernels and reference, and how many slots they need."""
    bs, nodes = tree.tokens.shape
    pages = -(-(max(lens) + nodes) // page)
    order = torch.randperm(bs * pages, generator=generator).view(bs, pages, 1)
    slots = (order * page + torch.arange(page)).flatten(1).to(device)
    prefix = torch.tensor(lens, device=device)
    tree = on_device(tree, device)
    kernel = PagedTree(
        slots.int(), torch.arange(bs, device=device), prefix, tree.ancestors, tree.depth, page
    )
    metadata = TreeAttentionMetadata(slots, prefix, tree.ancestor_mask(), tree.depth.long())
    return kernel, metadata, bs * pages * page


def check_mla(device: Device, seed: int, where: str = "cuda") -> Iterator[Result]:
    generator = torch.Generator().manual_seed(seed)
    for heads, page, lens, budget, dtype in (
        (1, 1, [0, 700], 7, torch.bfloat16),
        (8, 16, [1000, 3], 31, torch.bfloat16),
        (16, 64, [4097], 63, torch.bfloat16),
        (64, 1, [300], 15, torch.bfloat16),
        (8, 64, [5000, 64], 31, torch.float8_e4m3fn),
        (8, 1, [1500], 255, torch.bfloat16),
    ):
        tree, metadata, slots = paged(
            random_tree(len(lens), budget, generator), lens, page, generator, where
        )
        q = torch.randn(tree.bs, tree.nodes, heads, 576, generator=generator)
        q = q.to(where, torch.bfloat16)
        cache = torch.randn(slots, 1, 576, generator=generator).to(where, dtype)
        expected, _ = latent_tree_attention(
            q.double(), cache.double(), metadata, value_dim=512, scale=0.05
        )
        shape = dispatch.Shape(tree.nodes, heads, dim=576, v_dim=512, cache=dtype, page_size=page)
        for kernel in implementations(dispatch.MLA, device, shape):
            workspace = SplitWorkspace.allocate(tree.bs, tree.nodes, heads, 512, 8, where)
            out, _ = kernel.load()(q, cache, tree, workspace, scale=0.05, latent_dim=512)
            name = f"MLA {kernel.kernel}, {heads} heads, page {page}, {lens}, budget {budget}, "
            yield Result(name + str(dtype).removeprefix("torch."), error(out, expected), HALF)


def check_gqa(device: Device, seed: int, where: str = "cuda") -> Iterator[Result]:
    generator = torch.Generator().manual_seed(seed)
    for heads, kv_heads, dim, window, cap in (
        (8, 2, 64, -1, 0.0),
        (32, 8, 128, 100, 0.0),
        (24, 4, 256, -1, 30.0),
        (32, 4, 512, -1, 0.0),
    ):
        tree, metadata, slots = paged(
            random_tree(2, 31, generator), [1000, 17], 16, generator, where
        )
        q = torch.randn(2, tree.nodes, heads, dim, generator=generator).to(where, torch.bfloat16)
        k, v = (
            torch.randn(slots, kv_heads, dim, generator=generator).to(where, torch.bfloat16)
            for _ in range(2)
        )
        options = {"scale": dim**-0.5, "window": window, "soft_cap": cap}
        expected, _ = tree_attention(q.double(), k.double(), v.double(), metadata, **options)
        shape = dispatch.Shape(tree.nodes, heads, kv_heads, dim, dim)
        for kernel in implementations(dispatch.GQA, device, shape):
            workspace = SplitWorkspace.allocate(2, tree.nodes, heads, dim, 4, where)
            out, _ = kernel.load()(q, k, v, tree, workspace, **options)
            name = f"GQA {kernel.kernel}, {heads}/{kv_heads} heads of {dim}, window {window}"
            yield Result(name, error(out, expected), HALF)


def gdn_inputs(
    shape: RecurrentShape, bs: int, nodes: int, generator: torch.Generator, where: str
) -> tuple[RecurrentLayer, list[Tensor]]:
    """A layer, and mixed_qkv, a, b, states, windows of `bs` slots."""

    def normal(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(*size, generator=generator).to(where, dtype)

    layer = RecurrentLayer(
        shape,
        normal(shape.channels, shape.kernel_size) * 0.5,
        None,
        "silu",
        A_log=normal(shape.v_heads, dtype=torch.float32),
        dt_bias=normal(shape.v_heads, dtype=torch.float32),
    )
    return layer, [
        normal(bs, nodes, shape.channels),
        normal(bs, nodes, shape.v_heads),
        normal(bs, nodes, shape.v_heads),
        normal(bs, shape.v_heads, shape.v_dim, shape.k_dim, dtype=torch.float32),
        normal(bs, shape.channels, shape.kernel_size - 1),
    ]


def check_gdn(device: Device, seed: int, where: str = "cuda") -> Iterator[Result]:
    generator = torch.Generator().manual_seed(seed)
    shape = RecurrentShape(k_heads=2, v_heads=6, k_dim=128, v_dim=128)
    for budget in (15, 31, 63, 127):
        tree = on_device(random_tree(2, budget, generator), where)
        layer, inputs = gdn_inputs(shape, 2, tree.width, generator, where)
        *of_nodes, states, windows = inputs
        metadata = Recurrence.of(tree, shape.kernel_size)
        leaf = torch.tensor([tree.width - 1, 3], device=where)
        exact = RecurrentLayer(
            shape,
            layer.conv_weights.double(),
            None,
            "silu",
            layer.A_log.double(),
            layer.dt_bias.double(),
        )
        doubles = [x.double() for x in inputs]
        expected, stashed = verify(exact, *doubles, metadata)
        expected_state, expected_window = commit(stashed, *doubles[3:], metadata, leaf)
        paths = TreePaths(tree.parent, tree.ancestors)
        slots = torch.arange(2, device=where)
        query = dispatch.Shape(
            tree.width, 6, 2, 128, 128, cache=torch.float32, taps=shape.kernel_size
        )
        for first, second in zip(
            implementations(dispatch.VERIFY, device, query),
            implementations(dispatch.COMMIT, device, query),
            strict=True,
        ):
            stash = Stash.allocate(shape, (1, 2, tree.width), dtype=torch.bfloat16, device=where)
            out = first.load()(layer, *of_nodes, states, windows, slots, paths, stash.layer(0))
            new_states, new_windows = states[None].clone(), windows[None].clone()
            second.load()(shape, stash, new_states, new_windows, paths, leaf, slots, slots)
            yield Result(f"GDN verify {first.kernel}, budget {budget}", error(out, expected), HALF)
            gap = error(new_states[0], expected_state) + error(new_windows[0], expected_window)
            yield Result(f"GDN commit {second.kernel}, budget {budget}", gap, HALF)


def check_tree(device: Device, seed: int, where: str = "cuda") -> Iterator[Result]:
    generator = torch.Generator().manual_seed(seed)
    for budget in (7, 31, 63, 255):
        logits = torch.randn(4, 15, 64, generator=generator).round()
        candidates, root = Candidates.from_logits(logits, 8), torch.arange(4)
        expected = grow(candidates, root, GrowthPolicy(budget))
        moved = Candidates(candidates.tokens.to(where), candidates.log_probs.to(where))
        shape = dispatch.Shape(budget + 1)
        target = torch.randint(0, 64, expected.tokens.shape, generator=generator)
        for kernel in implementations(dispatch.GROW, device, shape):
            tree = kernel.load()(moved, root.to(where), budget)
            yield Result(f"grow {kernel.kernel}, budget {budget}", unequal(tree, expected), 0)
        for kernel in implementations(dispatch.ACCEPT, device, shape):
            accepted = kernel.load()(on_device(expected, where), target.to(where))
            gap = unequal(accepted, accept(expected, target))
            yield Result(f"accept {kernel.kernel}, budget {budget}", gap, 0)


def implementations(operation: str, device: Device, shape: dispatch.Shape) -> list[dispatch.Choice]:
    """The dispatched kernel, and Triton's where that is another."""
    chosen = dispatch.choose(operation, device, shape)
    without = dispatch.Device(device.capability, device.triton, compiler=False)
    other = dispatch.choose(operation, without, shape)
    kernels = [chosen] if other.kernel == chosen.kernel else [chosen, other]
    return [x for x in kernels if x.kernel in ("cuda", "triton")]


def error(actual: Tensor, expected: Tensor) -> float:
    """Largest difference, relative where values exceed one; inf where anything is NaN."""
    gap = (actual.double() - expected.double()).abs() / (1 + expected.double().abs())
    return float(gap.nan_to_num(torch.inf).max())


def unequal(actual: object, expected: object) -> float:
    """How many values of two records differ."""
    pairs = zip(vars(actual).values(), vars(expected).values(), strict=True)
    return float(sum(int((x.cpu() != y).sum()) for x, y in pairs))


CHECKS = (check_mla, check_gqa, check_gdn, check_tree)
