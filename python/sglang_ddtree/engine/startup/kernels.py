"""Which kernels a server's decode step runs, from the dispatch table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglang_ddtree.engine.attention.selection import NAME, attention_choice
from sglang_ddtree.engine.recurrent.memory import shape_of
from sglang_ddtree.ops.dispatch import (
    ACCEPT,
    COMMIT,
    GROW,
    MOVE,
    VERIFY,
    Choice,
    Device,
    Shape,
    choose,
    describe,
)

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner

    from sglang_ddtree.engine.options import TreeOptions

# A device without kernels: the table then names the torch operations.
TORCH = Device(capability=None, triton=False, compiler=False)


@dataclass(frozen=True)
class Kernels:
    """One choice an operation, the same on every rank.

    width: nodes of a tree. active: whether attention layers are verified by kernels, and all else
    that has one uses it; otherwise everything is torch's and SGLang's. verify and commit are of
    recurrent layers that stash, `None` for other targets.
    """

    width: int
    active: bool
    attention: Choice
    grow: Choice
    accept: Choice
    move: Choice
    verify: Choice | None
    commit: Choice | None

    def __str__(self) -> str:
        choices = (self.attention, self.verify, self.commit, self.grow, self.accept, self.move)
        # Another backend's verification is no row of the table.
        shown = choices if self.active else choices[1:]
        return describe([choice for choice in shown if choice is not None])


def kernels_of(runner: ModelRunner, options: TreeOptions) -> Kernels:
    """The kernels for a target whose attention backends are resolved."""
    from sglang.srt.runtime_context import get_parallel

    active = runner.decode_attention_backend_str == NAME
    device = Device.of(runner.device) if active else TORCH
    width, model = options.verify_width, runner.model_config
    tree = Shape(nodes=width)
    recurrent = _recurrent_shape(runner, width) if options.recurrent == "stash" else None
    return Kernels(
        width=width,
        active=active,
        attention=attention_choice(
            model,
            width,
            device,
            get_parallel().attn_tp_size,
            runner.kv_cache_dtype,
            runner.page_size,
        ),
        grow=choose(GROW, device, tree),
        accept=choose(ACCEPT, device, tree),
        move=choose(MOVE, device, tree),
        verify=None if recurrent is None else choose(VERIFY, device, recurrent),
        commit=None if recurrent is None else choose(COMMIT, device, recurrent),
    )


def _recurrent_shape(runner: ModelRunner, width: int) -> Shape | None:
    from sglang.srt.configs.hybrid_arch import mambaish_config

    config = mambaish_config(runner.model_config)
    if config is None:
        return None
    params = config.mamba2_cache_params
    shape = shape_of(params)
    return Shape(
        nodes=width,
        heads=shape.v_heads,
        kv_heads=shape.k_heads,
        dim=shape.k_dim,
        v_dim=shape.v_dim,
        model=runner.dtype,
        cache=params.dtype.temporal,
        channel_decay=shape.channel_decay,
        taps=shape.kernel_size,
    )
