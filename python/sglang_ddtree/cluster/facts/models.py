"""What a plan must know of a target and its drafter: sizes, not weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class KvLayers:
    """Attention layers with one shape of KV cache.

    layers: how many. heads: KV heads; 1 for a latent cache. row: elements of one head and token,
    keys and values together. score: multiply-adds of one query head and key, scores and values
    together. window: tokens kept, None for all. latent: MLA, whose one row is on every rank.
    """

    layers: int
    heads: int
    row: int
    score: int
    window: int | None = None
    latent: bool = False

    def row_bytes(self, tp: int, element_bytes: int = 2) -> int:
        """Bytes of one token on one rank, all layers. Ranks share a head where there are too few.

        tp: tensor-parallel size.
        """
        heads = 1 if self.latent else -(-self.heads // tp)
        return self.layers * heads * self.row * element_bytes

    def kept(self, context: int) -> int:
        """Tokens that stay cached of a context."""
        return context if self.window is None else min(context, self.window)


@dataclass(frozen=True)
class Recurrent:
    """Gated delta rule layers (GDN): a state of key dim x value dim for each value head."""

    layers: int
    key_heads: int
    value_heads: int
    key_dim: int = 128
    value_dim: int = 128
    conv_kernel: int = 4
    state_element_bytes: int = 4

    @property
    def state_bytes(self) -> int:
        """One snapshot of all layers: states and 16-bit convolution windows."""
        state = self.value_heads * self.key_dim * self.value_dim * self.state_element_bytes
        channels = 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
        return self.layers * (state + channels * (self.conv_kernel - 1) * 2)

    def stash_bytes(self, tp: int) -> int:
        """One node's stash of all layers on one rank, as `Stash` lays it out for a 16-bit model."""
        # Imported here: torch takes longer than everything else that a plan does.
        import torch

        from sglang_ddtree.ops.gdn_tree.stash import RecurrentShape, Stash

        shape = RecurrentShape(
            k_heads=self.key_heads // tp,
            v_heads=self.value_heads // tp,
            k_dim=self.key_dim,
            v_dim=self.value_dim,
            kernel_size=self.conv_kernel,
        )
        return Stash.allocate(
            shape, (self.layers, 1, 1), dtype=torch.bfloat16, device="meta"
        ).nbytes


@dataclass(frozen=True)
class DrafterFacts:
    """A DFlash drafter; embedding and head are the target's. repository: None without a public
    one. captured: layers of the target whose hidden states it reads."""

    repository: str | None
    block: int
    layers: int
    kv_heads: int
    head_dim: int
    weight_bytes: int
    captured: int

    def kv_row_bytes(self, tp: int) -> int:
        """Bytes of one token on one rank, 16-bit keys and values of all layers."""
        return self.layers * -(-self.kv_heads // tp) * 2 * self.head_dim * 2


@dataclass(frozen=True)
class ModelFacts:
    """A target as the planner sees it; sizes in bytes are of the whole checkpoint.

    weight_bytes: all weights. embedding_bytes: input embedding that no step reads as a whole.
    head_bytes: output projection, which a draft step reads as well. replicated_bytes: the part
    that every rank holds. expert_bytes: all routed experts of all layers.
    active_params: parameters that one token multiplies.
    sources: group of numbers to where it is from. uncertain: groups that no public config or
    measurement settles. server_arguments: options that its server always needs.
    """

    name: str
    repository: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    kv: tuple[KvLayers, ...]
    weight_bytes: int
    embedding_bytes: int
    head_bytes: int
    active_params: int
    context_limit: int
    drafter: DrafterFacts
    recurrent: Recurrent | None = None
    replicated_bytes: int = 0
    expert_bytes: int = 0
    experts: int = 0
    experts_per_token: int = 0
    sources: Mapping[str, str] = field(default_factory=dict)
    uncertain: tuple[str, ...] = ()
    server_arguments: tuple[str, ...] = ()

    @property
    def latent(self) -> bool:
        """Whether the KV cache is MLA's latent one."""
        return any(kv.latent for kv in self.kv)

    def tp_obstacle(self, tp: int) -> str | None:
        """Why a tensor-parallel size cannot shard the heads; None where it can."""
        if self.heads % tp:
            return f"{self.heads} attention heads do not divide by {tp}"
        for kv in self.kv:
            if not kv.latent and kv.heads % tp and tp % kv.heads:
                return f"{kv.heads} KV heads neither divide by {tp} nor into it"
        if self.recurrent is not None:
            for what, heads in (
                ("key", self.recurrent.key_heads),
                ("value", self.recurrent.value_heads),
            ):
                if heads % tp:
                    return f"{heads} recurrent {what} heads do not divide by {tp}"
        return None

    def experts_touched(self, tokens: int) -> float:
        """Expected number of experts of a layer that `tokens` use, if they choose independently.

        Tokens of one tree choose alike, so this is an upper bound.
        """
        if not self.experts:
            return 0.0
        missed = (1 - self.experts_per_token / self.experts) ** tokens
        return self.experts * (1 - missed)
