"""Reasons why DDTREE can't serve a configuration, each naming its fix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_ddtree.dflash.checkpoint import coverage_problems, vocabulary_problems
from sglang_ddtree.engine import mla
from sglang_ddtree.engine.attention import kinds
from sglang_ddtree.engine.attention.selection import TREE_BACKENDS, is_wanted
from sglang_ddtree.engine.target_capture import capture_problem

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.speculative.dflash_utils import DFlashDraftConfig

    from sglang_ddtree.engine.drafter_facts import DrafterFacts


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


def model_problems(target: ModelConfig, drafter: DrafterFacts, cfg: Any) -> list[str]:
    """Whether the target is of a kind we verify trees for, and the drafter fits it.

    Args:
        cfg: a resolving view of the server arguments.
    """
    asked, trained = cfg.speculative_dflash_block_size, drafter.block_size
    if asked not in (None, trained):
        return [
            f"--speculative-dflash-block-size is {asked}, but the drafter was trained for blocks "
            f"of {trained}: drop it (the tree's size is --speculative-ddtree-budget)"
        ]
    return [
        *target_problems(target),
        *_head_problems(drafter.dflash),
        *_fit_problems(target, drafter, cfg.tp_size),
    ]


def target_problems(target: ModelConfig) -> list[str]:
    """Whether SGLang captures from the target, and trees are verified in its layers.

    The architectures we verify are all captured by SGLang's own classes, so that only others are
    looked up in its registry, which imports every model.
    """
    from sglang.srt.configs.model_config import ModelImpl

    problem = kinds.architecture_problem(target)
    if problem is None and target.model_impl in (ModelImpl.AUTO, ModelImpl.SGLANG):
        return []
    found = capture_problem(target) or problem
    return [] if found is None else [found]


def _head_problems(dflash: DFlashDraftConfig) -> list[str]:
    heads = {
        "Domino": dflash.is_domino,
        "DFlash2 selector": bool(dflash.selector_rank),
        "DFlash2 grouped-convolution": bool(dflash.conv_kernel_size),
    }
    return [
        f"drafters with a {head} head are not driven by DDTREE yet: use a plain DFlash drafter"
        for head, present in heads.items()
        if present
    ]


def _fit_problems(target: ModelConfig, drafter: DrafterFacts, tp_size: int) -> list[str]:
    problems = []
    dflash, num_layers = drafter.dflash, target.num_hidden_layers
    if drafter.hidden_size != target.hidden_size:
        problems.append(
            f"the drafter's hidden size is {drafter.hidden_size}, the target's "
            f"{target.hidden_size}: it was trained for another target"
        )
    if drafter.vocab_size != target.vocab_size:
        problems.append(
            f"the drafter's vocabulary has {drafter.vocab_size} tokens, the target's "
            f"{target.vocab_size}: it was trained for another target"
        )
    if drafter.block_size < 2:
        problems.append(f"the drafter's block size is {drafter.block_size}, it must be at least 2")
    if dflash.num_target_layers not in (None, num_layers):
        problems.append(
            f"the drafter expects a target of {dflash.num_target_layers} layers, this one has "
            f"{num_layers}"
        )
    beyond = [i for i in dflash.target_layer_ids or () if not 0 <= i < num_layers]
    if beyond:
        problems.append(
            f"the drafter reads target layers {beyond}, the target has layers 0..{num_layers - 1}"
        )
    if dflash.mask_token_id is not None and dflash.mask_token_id >= target.vocab_size:
        problems.append(
            f"the drafter's mask token is {dflash.mask_token_id}, the target's vocabulary has "
            f"{target.vocab_size} tokens"
        )
    if drafter.num_heads % tp_size or (
        drafter.num_kv_heads % tp_size and tp_size % drafter.num_kv_heads
    ):
        problems.append(
            f"the drafter's {drafter.num_heads} heads and {drafter.num_kv_heads} KV heads can't "
            f"be split over --tp-size {tp_size}"
        )
    folder = Path(drafter.path)
    if not problems and folder.is_dir():
        layer_ids = dflash.resolve_target_layer_ids(
            target_num_layers=num_layers, draft_num_layers=dflash.require_num_layers()
        )
        problems += coverage_problems(folder, len(layer_ids))
        problems += vocabulary_problems(folder, target.vocab_size)
    return problems
