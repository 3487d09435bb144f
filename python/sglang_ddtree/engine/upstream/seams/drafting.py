"""The drafter's forward and its head."""

from __future__ import annotations

from sglang_ddtree.engine.upstream.seams.seam import Seam

SEAMS = (
    Seam(
        "sglang.srt.model_executor.model_runner.ModelRunner._extend_forward_kwargs",
        ("forward_batch", "pp_proxy_tensors"),
        "keep the drafter's embedding dtype",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2._maybe_build_draft_sampler",
        (),
        "keep the head out of the draft graph",
    ),
    Seam(
        "sglang.srt.models.dflash.DFlashDraftModel.load_weights",
        ("weights",),
        "read a drafter's draft vocabulary",
    ),
    Seam(
        "sglang.srt.models.dflash.candidate_topk",
        ("hidden", "lm_head", "k", "with_partition"),
        "take candidates from a sharded head",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2._block_pos_offsets",
        (),
        "run the drafter's block",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2._draft_block_spec_info",
        (),
        "run the drafter's block",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2._mask_token_id",
        (),
        "run the drafter's block",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2._noise_embed_scale",
        (),
        "run the drafter's block",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2.draft_model",
        (),
        "run the drafter's block",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2.draft_model_runner",
        (),
        "run the drafter's block",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2.draft_parallel_layout",
        (),
        "run the drafter's block",
    ),
    Seam("sglang.srt.model_executor.forward_batch_info.ForwardMode", (), "run the drafter's block"),
    Seam(
        "sglang.srt.model_executor.forward_batch_info.enable_num_token_non_padded",
        (),
        "run the drafter's block",
    ),
    Seam(
        "sglang.srt.speculative.spec_utils.draft_tp_context",
        (),
        "run the drafter in its tensor-parallel group",
    ),
    Seam(
        "sglang.srt.speculative.dflash_utils.is_dense_head_weight",
        (),
        "know whether a head can be multiplied directly",
    ),
)
