"""Times of the kernels on a GPU beside torch and the roofline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from statistics import median

import torch

from common.gpu_cases import gdn_inputs, on_device, paged, random_tree
from common.roofline import CARDS, Card, Layer
from sglang_ddtree.ops import dispatch
from sglang_ddtree.ops.dispatch import Device
from sglang_ddtree.ops.gdn_tree import RecurrentShape, Stash, TreeRecurrenceMetadata, verify
from sglang_ddtree.ops.gdn_tree.paths import TreePaths
from sglang_ddtree.ops.tree_attention.latent import attend_latent_sdpa
from sglang_ddtree.ops.tree_attention.paged import SplitWorkspace, choose_splits
from sglang_ddtree.ops.tree_attention.sdpa import attend_sdpa

ROUNDS = 30


@dataclass(frozen=True)
class Timing:
    """Medians in microseconds; `baseline` is torch on rows that were gathered beforehand."""

    name: str
    ours: float
    baseline: float
    floor: float

    def line(self) -> str:
        return f"{self.name}: {self.ours:.1f} us, torch {self.baseline:.1f}, floor {self.floor:.1f}"


def card() -> Card:
    """The roofline of this GPU: of the H200 where the name has it, else of the RTX PRO 6000."""
    return CARDS["H200" in torch.cuda.get_device_name()]


def microseconds(run: Callable[[int], object], copies: int) -> float:
    """Median over rounds, each on the next of `copies` inputs."""
    for index in range(copies):
        run(index)
    times = []
    turns = cycle(range(copies))
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run(next(turns))
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return median(times)


def copies_past_l2(nbytes: int) -> int:
    """Inputs of this size that together are twice as large as the L2 cache."""
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    return max(2, min(16, -(-2 * cache // nbytes) + 1))


def time_attention(device: Device) -> Iterator[Timing]:
    """MLA as Kimi K2.6 has it at TP 8, GQA as Qwen3.6-27B at TP 1."""
    mla = Layer("mla", 1, 8, 1, 576, 512)
    gqa = Layer("gqa", 1, 24, 4, 256, 256)
    for layer in (mla, gqa):
        for budget in (15, 31, 63):
            for prefix in (8192, 32768, 131072):
                yield _time_attention(device, layer, budget, prefix)


def _time_attention(device: Device, layer: Layer, budget: int, prefix: int) -> Timing:
    generator = torch.Generator().manual_seed(0)
    tree, metadata, slots = paged(
        random_tree(1, budget, generator), [prefix], 64, generator, "cuda"
    )
    latent = layer.kind == "mla"
    rows = slots * layer.kv_heads * layer.dim * 2 * (1 if latent else 2)
    copies = copies_past_l2(rows)
    q = torch.randn(1, tree.nodes, layer.heads, layer.dim, device="cuda").bfloat16()
    caches = [
        torch.randn(2, slots, layer.kv_heads, layer.dim, device="cuda").bfloat16()
        for _ in range(copies)
    ]
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    tiles = -(-tree.nodes * layer.heads // (32 if latent else 64))
    workspace = SplitWorkspace.allocate(
        1,
        tree.nodes,
        layer.heads,
        layer.v_dim,
        choose_splits(1, tiles, processors, prefix, blocks_per_processor=1 if latent else 2),
        "cuda",
    )
    operation = dispatch.MLA if latent else dispatch.GQA
    shape = dispatch.Shape(tree.nodes, layer.heads, layer.kv_heads, layer.dim, layer.v_dim)
    kernel = dispatch.choose(operation, device, shape)
    run = kernel.load()
    out = q.new_empty(1, tree.nodes, layer.heads, layer.v_dim)
    lse = q.new_empty(1, tree.nodes, layer.heads, dtype=torch.float32)
    fixed = {"scale": 0.05, "out": out, "lse": lse}
    gathered = [cache[:, metadata.slots[0]].unsqueeze(1) for cache in caches]
    bias = metadata.bias(-1, q.dtype)

    def ours(i: int) -> object:
        if latent:
            return run(q, caches[i][0], tree, workspace, latent_dim=512, **fixed)
        return run(q, *caches[i], tree, workspace, **fixed)

    def baseline(i: int) -> object:
        k, v = gathered[i]
        if latent:
            return attend_latent_sdpa(q, k, bias, value_dim=512, scale=0.05)
        return attend_sdpa(q, k, v, bias, scale=0.05)

    return Timing(
        f"{operation}, {kernel.kernel}, budget {budget}, prefix {prefix}",
        microseconds(ours, copies),
        microseconds(baseline, copies),
        layer.ours(tree.nodes, prefix).floor(card()) * 1e6,
    )


def time_gdn(device: Device) -> Iterator[Timing]:
    """A layer of Qwen3.6-27B at TP 1; the baseline is the torch reference."""
    shape = RecurrentShape(k_heads=16, v_heads=48, k_dim=128, v_dim=128)
    layer_cost = Layer("gdn", 1, 48, 16, 128, 128)
    generator = torch.Generator().manual_seed(0)
    for budget in (15, 31, 63):
        tree = on_device(random_tree(1, budget, generator), "cuda")
        layer, (mixed, a, b, states, windows) = gdn_inputs(shape, 1, tree.width, generator, "cuda")
        copies = copies_past_l2(states.nbytes)
        pools = [states.clone() for _ in range(copies)]
        paths = TreePaths(tree.parent, tree.ancestors)
        metadata = TreeRecurrenceMetadata.of(tree, shape.kernel_size)
        stash = Stash.allocate(shape, (1, tree.width), dtype=torch.bfloat16, device="cuda")
        slot = torch.zeros(1, dtype=torch.int64, device="cuda")
        query = dispatch.Shape(tree.width, 48, 16, 128, 128, cache=torch.float32)
        kernel = dispatch.choose(dispatch.VERIFY, device, query)
        run = kernel.load()
        out = mixed.new_empty(1, tree.width, 48, 128)

        def ours(
            i: int, run=run, mixed=mixed, a=a, b=b, pools=pools, windows=windows, slot=slot,
            paths=paths, stash=stash, out=out, layer=layer,
        ) -> object:  # fmt: skip
            return run(layer, mixed, a, b, pools[i], windows, slot, paths, stash, out)

        def baseline(
            i: int, mixed=mixed, a=a, b=b, pools=pools, windows=windows, metadata=metadata,
            layer=layer,
        ) -> object:  # fmt: skip
            return verify(layer, mixed, a, b, pools[i], windows, metadata)

        yield Timing(
            f"gated delta verify, {kernel.kernel}, budget {budget}",
            microseconds(ours, copies),
            microseconds(baseline, copies),
            layer_cost.ours(tree.width, 0).floor(card()) * 1e6,
        )


TIMINGS = (time_attention, time_gdn)
