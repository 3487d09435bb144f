"""Which backend verifies trees in attention layers, decided at start-up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sglang_ddtree.engine.config_error import DDTreeConfigError
from sglang_ddtree.engine.options import is_asked_for, raw_input
from sglang_ddtree.engine.startup import mla
from sglang_ddtree.ops.dispatch import GQA, MLA, Choice, Device, Shape, choose

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig

NAME = "ddtree"
# Stock backends whose verify path applies a custom mask, and the CPU platform's.
TREE_BACKENDS = ("triton", "torch_tree")
# Their heads have a learned sink beside the keys (`sinks` of RadixAttention's callers@0.5.23).
SINK_ARCHITECTURES = ("GptOssForCausalLM", "MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM")
_CACHE_DTYPES = {
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


def is_named(cfg: Any) -> bool:
    """Whether the user gave ``--decode-attention-backend ddtree``."""
    return raw_input(cfg).get("decode_attention_backend") == NAME


def is_wanted(cfg: Any) -> bool:
    """Whether ``ddtree`` should verify if its kernels cover the model.

    It is the default on CUDA, unless the user named a decode backend that verifies trees itself.
    """
    from sglang.srt.utils import is_cuda

    raw = raw_input(cfg)
    named = raw.get("decode_attention_backend") or raw.get("attention_backend")
    return named == NAME or (is_cuda() and named not in TREE_BACKENDS)


def set_aside(server_args: Any) -> None:
    """Keep the name from SGLang's rules for backends until the model is known.

    They are lists of names (srt/arg_groups/model_hook.py:643@0.5.23). What the user gave stays in
    the record's raw input.

    Raises:
        DDTreeConfigError: ``ddtree`` was named where it has no meaning.
    """
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

    cfg = resolving_view(server_args)
    if NAME in (cfg.attention_backend, cfg.prefill_attention_backend):
        raise DDTreeConfigError(
            f"attention backend {NAME!r} verifies trees and nothing else: name it with "
            "--decode-attention-backend"
        )
    if cfg.decode_attention_backend != NAME:
        return
    if not is_asked_for(cfg):
        raise DDTreeConfigError(
            f"--decode-attention-backend {NAME} goes with --speculative-algorithm DDTREE only"
        )
    declare_resolution(server_args, NAME, decode_attention_backend=None)


def verdict(target: ModelConfig, width: int, cfg: Any) -> tuple[bool, list[str]]:
    """Whether ``ddtree`` verifies this target's trees, and why the server can't start, if so.

    It can't where ``ddtree`` was asked for and does not cover the model, or was to stand in for a
    named backend that verifies chains only. Otherwise what does not cover it steps aside.

    Args:
        width: nodes of a tree, the root included.
        cfg: a resolving view of the server arguments.
    """
    from sglang.srt.arg_groups.overrides import attention_backends_of

    if not is_wanted(cfg):
        return False, []
    reasons = "; ".join(objections(target, width, cfg))
    if not reasons:
        return True, []
    if is_named(cfg):
        return False, [
            f"--decode-attention-backend {NAME} can't verify trees here ({reasons}): drop it"
        ]
    named = dict.fromkeys(attention_backends_of(cfg))
    return False, [
        f"{mla.backend_problem(name)}; {NAME} can't stand in for it: {reasons}"
        for name in named
        if name not in TREE_BACKENDS
    ]


def objections(target: ModelConfig, width: int, cfg: Any) -> list[str]:
    """Why the kernels do not cover a configuration; empty when they do."""
    from sglang.srt.utils import is_hip

    cache = cache_dtype(cfg.kv_cache_dtype, target.dtype)
    architecture = target.hf_config.architectures[0]
    refused = {
        f"a KV cache in {cfg.kv_cache_dtype}": cache is None,
        "--enable-unified-memory translates slots": bool(cfg.enable_unified_memory),
        f"{architecture} has attention sinks": architecture in SINK_ARCHITECTURES,
        "they were not tried on ROCm": is_hip(),
    }
    reasons = [reason for reason, applies in refused.items() if applies]
    if reasons or cache is None:
        return reasons
    choice = attention_choice(
        target, width, Device.of(cfg.device), cfg.tp_size, cache, cfg.page_size or 1
    )
    return list(choice.passed_over) if choice.kernel == "torch" else []


def attention_choice(
    target: ModelConfig,
    width: int,
    device: Device,
    tp_size: int,
    cache: torch.dtype,
    page_size: int,
) -> Choice:
    """The kernel that the dispatch table has for a target's attention layers."""
    from sglang.srt.configs.model_config import AttentionArch

    latent = target.attention_arch == AttentionArch.MLA
    if latent:
        dims = (target.kv_lora_rank + target.qk_rope_head_dim, target.kv_lora_rank)
    else:
        dims = (
            max(target.head_dim, target.swa_head_dim),
            max(target.v_head_dim, target.swa_v_head_dim),
        )
    shape = Shape(
        nodes=width,
        heads=target.num_attention_heads // tp_size,
        kv_heads=1 if latent else target.get_num_kv_heads(tp_size),
        dim=dims[0],
        v_dim=dims[1],
        model=target.dtype,
        cache=cache,
        page_size=page_size,
    )
    return choose(MLA if latent else GQA, device, shape)


def cache_dtype(name: str, model: torch.dtype) -> torch.dtype | None:
    """What ``--kv-cache-dtype`` means; ``None`` for what no kernel reads."""
    return model if name == "auto" else _CACHE_DTYPES.get(name)
