"""Targets and drafters that DDTREE can't serve, each named with its fix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_ddtree.dflash.checkpoint import coverage_problems, vocabulary_problems
from sglang_ddtree.engine.attention import kinds
from sglang_ddtree.engine.drafting.heads import head_problems
from sglang_ddtree.engine.startup.target_capture import capture_problem

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig

    from sglang_ddtree.engine.startup.drafter_facts import DrafterFacts


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
        *head_problems(drafter.dflash),
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
