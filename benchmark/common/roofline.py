"""What one verify step moves, computes and launches, by arithmetic on the kernels' own tilings.

Nothing here is measured. Stock figures follow SGLang 0.5.23's Triton kernels as their sources
launch them on sm_120: kernels/ops/attention/extend_attention.py:95 and :1075 (grid: requests,
query heads, blocks of queries; every block walks the whole prefix), and for recurrent layers
kernels/ops/attention/fla/fused_recurrent.py:866 (every node reads its parent's state and writes its
own) after one launch of the convolution.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import sglang_ddtree.cluster
from sglang_ddtree.ops.tree_attention.paged import MIN_KEYS, choose_splits

CONFIGS = Path(sglang_ddtree.cluster.__file__).parent / "configs"
PROCESSORS = 188  # of an RTX PRO 6000; an H200 has 132


@dataclass(frozen=True)
class Card:
    """Bandwidth in byte/s and dense bfloat16 arithmetic in FLOP/s, as published or derived."""

    name: str
    bandwidth: float
    flops: float


# The card's bfloat16 rate is derived from its FP4 figure, not from a datasheet.
CARDS = (Card("RTX PRO 6000", 1.792e12, 500e12), Card("H200", 4.8e12, 989e12))


@dataclass(frozen=True)
class Cost:
    """Of one layer and step: bytes that must come from or go to device memory, bytes that the
    processors load (re-reads, mostly of the L2 cache, included), FLOP, launches, blocks.
    """

    memory: float
    loads: float
    flop: float
    launches: int
    blocks: int

    def floor(self, card: Card) -> float:
        """Seconds that no kernel of this traffic and arithmetic can undercut."""
        return max(self.memory / card.bandwidth, self.flop / card.flops)


@dataclass(frozen=True)
class Layer:
    """`count` layers of one kind on one rank. kind: mla, gqa or gdn."""

    kind: str
    count: int
    heads: int
    kv_heads: int
    dim: int
    v_dim: int
    window: int | None = None
    kv_bytes: int = 2
    taps: int = 4

    def ours(self, nodes: int, prefix: int) -> Cost:
        """Our kernel of this layer."""
        return {"mla": self._mla, "gqa": self._gqa, "gdn": self._gdn}[self.kind](nodes, prefix)

    def stock(self, nodes: int, prefix: int) -> Cost:
        """SGLang's."""
        if self.kind == "gdn":
            return self._stock_gdn(nodes)
        block = 64 if self.dim <= 256 else 32
        blocks = self.heads * -(-nodes // block)
        keys = self._keys(prefix) + nodes
        row = (self.dim + self.v_dim) * self.kv_bytes  # MLA: the value is loaded a second time
        once = self.ours(nodes, prefix).memory
        return Cost(once, blocks * keys * row, self._attention_flop(nodes, prefix), 1, blocks)

    def _keys(self, prefix: int) -> int:
        return prefix if self.window is None else min(prefix, self.window)

    def _attention_flop(self, nodes: int, prefix: int) -> float:
        keys = self._keys(prefix) + nodes
        return 2.0 * nodes * self.heads * keys * (self.dim + self.v_dim)

    def _attention(self, nodes: int, prefix: int, tiles: int) -> Cost:
        """`tiles` row tiles of all KV heads."""
        splits = choose_splits(1, tiles, PROCESSORS, self._keys(prefix))
        parts = 1 + min(splits, -(-self._keys(prefix) // MIN_KEYS))  # that have keys
        row = self.dim if self.kind == "mla" else self.dim + self.v_dim
        keys = (self._keys(prefix) + nodes) * row * self.kv_bytes
        ends = nodes * self.heads * (self.dim + self.v_dim) * 2
        # Written by the splits, read by the merge, and reused by every layer: they stay in L2.
        partials = 2 * parts * nodes * self.heads * (self.v_dim + 1) * 4
        return Cost(
            memory=keys * self.kv_heads + ends,
            loads=keys * tiles + ends + partials,
            flop=self._attention_flop(nodes, prefix),
            launches=1,
            blocks=tiles * parts,
        )

    def _mla(self, nodes: int, prefix: int) -> Cost:
        rows = nodes * self.heads
        tiles = -(-rows // (16 if rows <= 16 else 32))
        return self._attention(nodes, prefix, tiles)

    def _gqa(self, nodes: int, prefix: int) -> Cost:
        rows = nodes * self.heads // self.kv_heads
        largest = 64 if self.dim <= 256 else 32
        tiles = -(-rows // min(largest, max(16, rows))) * self.kv_heads
        return self._attention(nodes, prefix, tiles)

    @property
    def _state(self) -> int:
        return self.heads * self.v_dim * self.dim

    @property
    def _channels(self) -> int:
        return 2 * self.kv_heads * self.dim + self.heads * self.v_dim

    def _gdn(self, nodes: int, _prefix: int) -> Cost:
        stash = nodes * (self.kv_heads * self.dim + self.heads * (self.v_dim + 1)) * 4
        vectors = nodes * (2 * self._channels + self.heads * self.v_dim) * 2
        window = self._channels * (self.taps - 1) * 2
        pairs = nodes * (nodes + 1) / 2 * self.heads * 2 * (2 * self.dim + 2 * self.v_dim)
        flop = 4.0 * nodes * self._state + pairs
        slices = self.v_dim // 32
        memory = self._state * 4 + stash + vectors + window
        # Each slice of a head convolves the queries and keys of its group again.
        again = (self.heads * slices - self.kv_heads) * nodes * 2 * self.dim * 2
        return Cost(memory, memory + again, flop, 1, self.heads * slices)

    def _stock_gdn(self, nodes: int) -> Cost:
        states = 2.0 * nodes * self._state * 4
        windows = nodes * self._channels * (self.taps - 1) * 2.0
        vectors = nodes * (3 * self._channels + self.heads * self.v_dim) * 2
        total = states + windows + vectors
        return Cost(total, total, 7.0 * nodes * self._state, 2, self.heads * (self.v_dim // 32))


@dataclass(frozen=True)
class Model:
    """Layers of a model on one rank of `tp`."""

    name: str
    tp: int
    layers: tuple[Layer, ...] = field(default_factory=tuple)


def models() -> list[Model]:
    """Kimi K2.6 at TP 8 with both cache types, Qwen3.6-27B at TP 1 and 4, Gemma-4-31B at TP 1."""
    return [_kimi(2), _kimi(1), _qwen(1), _qwen(4), _gemma()]


def _config(name: str) -> dict:
    record = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    config = record.get("config", record)
    return config.get("text_config", config)


def _kimi(kv_bytes: int) -> Model:
    config, tp = _config("kimi-k2.6"), 8
    rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    layer = Layer(
        "mla",
        config["num_hidden_layers"],
        config["num_attention_heads"] // tp,
        1,
        rank + rope,
        rank,
        kv_bytes=kv_bytes,
    )
    return Model(f"Kimi K2.6, {'bf16' if kv_bytes == 2 else 'fp8'} latent", tp, (layer,))


def _qwen(tp: int) -> Model:
    config = _config("qwen3.6-27b")
    interval = config.get("full_attention_interval", 4)
    full = config["num_hidden_layers"] // interval
    heads, kv_heads, dim = (
        config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    attention = Layer("gqa", full, heads // tp, max(1, kv_heads // tp), dim, dim)
    recurrent = Layer(
        "gdn",
        config["num_hidden_layers"] - full,
        config["linear_num_value_heads"] // tp,
        config["linear_num_key_heads"] // tp,
        config["linear_key_head_dim"],
        config["linear_value_head_dim"],
        taps=config["linear_conv_kernel_dim"],
    )
    return Model("Qwen3.6-27B", tp, (attention, recurrent))


def _gemma() -> Model:
    config = _config("gemma-4-31b")
    layers = config["num_hidden_layers"]
    full = layers // config["sliding_window_pattern"]
    heads = config["num_attention_heads"]
    wide, narrow = config["global_head_dim"], config["head_dim"]
    sliding = Layer(
        "gqa",
        layers - full,
        heads,
        config["num_key_value_heads"],
        narrow,
        narrow,
        window=config["sliding_window"],
    )
    global_ = Layer("gqa", full, heads, config["num_global_key_value_heads"], wide, wide)
    return Model("Gemma-4-31B", 1, (sliding, global_))
