"""Settings of a server that DDTREE can't serve, each named with its fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_ddtree.engine.attention.selection import TREE_BACKENDS, is_wanted
from sglang_ddtree.engine.startup import mla


def server_problems(cfg: Any) -> list[str]:
    """Settings that need no model to be judged.

    Args:
        cfg: a resolving view of the server arguments.
    """
    from sglang.srt.arg_groups.overrides import attention_backends_of
    from sglang.srt.platforms import current_platform

    refused = {
        "--speculative-draft-model-path is missing: give a DFlash drafter trained for the target": (
            not cfg.speculative_draft_model_path
        ),
        f"pipeline parallelism is not supported: set --pp-size 1 (got {cfg.pp_size})": (
            cfg.pp_size != 1
        ),
        "DP attention is not supported: drop --enable-dp-attention / --attn-dp-size": (
            (cfg.attn_dp_size or 1) != 1 or bool(getattr(cfg, "enable_dp_attention", False))
        ),
        "decode context parallelism is not supported: drop --dcp-size": (cfg.dcp_size or 1) != 1,
        "prefill/decode disaggregation is not supported: drop --disaggregation-mode": (
            cfg.disaggregation_mode not in (None, "null")
        ),
        "LoRA is not supported: drop --enable-lora and --lora-paths": bool(
            cfg.enable_lora or cfg.lora_paths
        ),
        "--speculative-use-rejection-sampling is a chain's sampler: drop it (a tree is verified "
        "exactly without it)": bool(cfg.speculative_use_rejection_sampling),
        "--speculative-adaptive is not supported: drop it": bool(cfg.speculative_adaptive),
        "--speculative-draft-window-size is not supported: drop it": (
            cfg.speculative_draft_window_size is not None
        ),
        "--speculative-num-steps has no meaning for a block drafter: drop it": (
            cfg.speculative_num_steps not in (None, 1)
        ),
        "--enable-mixed-chunk is not supported: drop it": bool(cfg.enable_mixed_chunk),
        "--enable-hierarchical-cache copies KV rows with CUDA kernels: drop it without a GPU": bool(
            cfg.enable_hierarchical_cache and current_platform.is_out_of_tree()
        ),
        "--enable-watermark is not supported: drop it": bool(cfg.enable_watermark),
        "--enable-memory-saver loses the drafter when memory is released: add "
        "--enable-draft-weights-cpu-backup": bool(
            cfg.enable_memory_saver
            and not (cfg.enable_weights_cpu_backup or cfg.enable_draft_weights_cpu_backup)
        ),
        "two-batch overlap and PD multiplexing are not supported: drop --enable-two-batch-overlap "
        "and --enable-pdmux": bool(cfg.enable_two_batch_overlap or cfg.enable_pdmux),
    }
    problems = [reason for reason, applies in refused.items() if applies]
    drafter = Path(cfg.speculative_draft_model_path or ".")
    if drafter.is_absolute() and not drafter.exists():
        problems.append(f"--speculative-draft-model-path: there is no {drafter}")
    backends = [cfg.speculative_draft_attention_backend]
    if not is_wanted(cfg):  # else it depends on the model
        backends += attention_backends_of(cfg)
    for backend in dict.fromkeys(backends):
        if backend is not None and backend not in TREE_BACKENDS:
            problems.append(mla.backend_problem(backend))
    return problems
