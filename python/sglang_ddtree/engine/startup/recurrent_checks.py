"""Reasons why DDTREE can't serve a target's recurrent layers, each naming its fix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_ddtree.engine.recurrent.memory import dtype_name

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig

    from sglang_ddtree.engine.options import TreeOptions
    from sglang_ddtree.engine.startup.drafter_facts import DrafterFacts

# ``hybrid_gdn_config`` knows them (srt/configs/hybrid_arch.py:55@0.5.23): gated delta rule in all
# recurrent layers, of those models
# whose verification was tried.
GDN_ARCHITECTURES = (
    "Qwen3NextForCausalLM",
    "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration",
)


def architecture_problem(target: ModelConfig) -> str | None:
    """Whether the target has recurrent layers of a kind that trees don't reach."""
    from sglang.srt.configs.hybrid_arch import mambaish_config

    architecture = target.hf_config.architectures[0]
    if mambaish_config(target) is None or architecture in GDN_ARCHITECTURES:
        return None
    return (
        f"{architecture} has recurrent layers whose trees are not verified yet; those of "
        f"{', '.join(GDN_ARCHITECTURES)} are"
    )


def recurrent_problems(
    target: ModelConfig, drafter: DrafterFacts, options: TreeOptions, cfg: Any
) -> list[str]:
    """Settings that a target with recurrent layers does not go with.

    Args:
        cfg: a resolving view of the server arguments.
    """
    from sglang.srt.arg_groups.model_override_base import mamba_extra_buffer_of
    from sglang.srt.configs.hybrid_arch import mambaish_config
    from sglang.srt.configs.mamba_utils import mamba2_state_dtype
    from sglang.srt.platforms import current_platform

    snapshot = options.recurrent == "snapshot"
    config = mambaish_config(target)
    if config is None:
        return (
            ["--speculative-ddtree-recurrent is for targets with recurrent layers: drop it"]
            if snapshot
            else []
        )
    last = target.num_hidden_layers - 1
    on_cpu = current_platform.is_out_of_tree()
    refused = {
        "--speculative-ddtree-recurrent snapshot runs Triton kernels: drop it without a GPU": (
            snapshot and on_cpu
        ),
        "Qwen3-Next's experts have no torch version: serve it on a GPU": (
            on_cpu and target.hf_config.architectures[0] == "Qwen3NextForCausalLM"
        ),
        f"the drafter reads target layer {last}, whose output SGLang does not capture in hybrid "
        "models: train it on earlier layers": last in (drafter.dflash.target_layer_ids or ()),
        f"--mamba-track-interval must be at least {options.window}, the tree or the block "
        f"(got {cfg.mamba_track_interval})": (
            mamba_extra_buffer_of(cfg) and cfg.mamba_track_interval < options.window
        ),
        "--enable-unified-memory keeps its own recurrent snapshots: drop it": bool(
            cfg.enable_unified_memory
        ),
        "--enable-int8-mamba-checkpoint restores rounded states, so that a cached prefix would "
        "change answers: drop it": bool(cfg.enable_int8_mamba_checkpoint),
        "--enable-linear-replayssm and --enable-linear-replayssm-spec replay chains: drop them": (
            bool(cfg.enable_linear_replayssm or cfg.enable_linear_replayssm_spec)
        ),
        "--linear-attn-verify-backend verifies chains: drop it": bool(
            cfg.linear_attn_verify_backend
        ),
    }
    problems = [reason for reason, applies in refused.items() if applies]
    dtypes = mamba2_state_dtype(config)
    if dtypes.conv != target.dtype:
        wanted = dtype_name(target.dtype)
        problems.append(
            f"convolution windows would be rounded from {wanted} to {dtype_name(dtypes.conv)}, "
            f"other inputs of a tree not: set SGLANG_MAMBA_CONV_DTYPE={wanted}"
        )
    if (cfg.mamba_ssm_dtype or dtype_name(dtypes.temporal)) != "float32":
        problems.append(
            "recurrent states must be float32 for answers to equal plain decoding's: set "
            "--mamba-ssm-dtype float32"
        )
    return problems
