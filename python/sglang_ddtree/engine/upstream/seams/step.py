"""A decode step: runners, slots, verification, commit."""

from __future__ import annotations

from sglang_ddtree.engine.upstream.seams.seam import Seam

SEAMS = (
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2.forward_batch_generation",
        ("batch", "on_publish", "grammar_barrier", "pp_proxy_tensors"),
        "prefill as DFLASH does",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2"
        "._append_target_hidden_to_draft_kv_by_loc",
        ("target_hidden", "cache_loc", "positions"),
        "write the drafter's KV",
    ),
    Seam(
        "sglang.srt.speculative.dflash_info.DFlashVerifyInput.prepare_for_verify",
        ("batch", "target_worker"),
        "prepare the verify forward",
    ),
    Seam(
        "sglang.srt.layers.sampler.Sampler.forward",
        ("logits_output", "sampling_info", "positions"),
        "draw the target's token at every node",
    ),
    Seam(
        "sglang.kernels.ops.speculative.cache_locs.assign_extend_cache_locs_func",
        ("req_pool_indices", "req_to_token", "start_offset", "end_offset"),
        "look up a step's KV slots",
    ),
    Seam(
        "sglang.srt.mem_cache.kv_index_translator.KVIndexTranslator.plan",
        ("req_pool_indices", "seq_lens", "seq_lens_cpu", "write_virtual", "read_extent"),
        "translate a step's KV slots",
    ),
    Seam(
        "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool.move_kv_cache",
        ("tgt_loc", "src_loc"),
        "commit the accepted path",
    ),
    Seam(
        "sglang.srt.mem_cache.memory_pool.MLATokenToKVPool.move_kv_cache",
        ("tgt_loc", "src_loc"),
        "commit the accepted path in a latent pool",
    ),
    Seam(
        "sglang.srt.managers.utils.GenerationBatchResult",
        ("accept_lens", "speculative_output_stride", "next_draft_input", "new_seq_lens"),
        "return a step's tokens",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2.model_runner",
        (),
        "use the runners that DFLASH set up",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2.target_worker",
        (),
        "use the runners that DFLASH set up",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2.device",
        (),
        "use the runners that DFLASH set up",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2.init_attention_backends",
        (),
        "use the runners that DFLASH set up",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2.prewarm_sampling",
        (),
        "use the runners that DFLASH set up",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2._tp_sync",
        (),
        "agree within a tensor-parallel group",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2._target_tp_rank",
        (),
        "agree within a tensor-parallel group",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2._target_logits_processor",
        (),
        "finish sharded logits",
    ),
    Seam(
        "sglang.srt.speculative.spec_tp_sync.SpecTpSyncSite",
        (),
        "agree within a tensor-parallel group",
    ),
    Seam("sglang.srt.layers.dp_attention.get_dp_tp_group", (), "compare the decisions of ranks"),
    Seam(
        "sglang.srt.model_executor.model_runner.SamplingPrewarmResult",
        (),
        "skip rehearsing the chain's sampler",
    ),
    Seam(
        "sglang.srt.model_executor.forward_batch_info.CaptureHiddenMode",
        (),
        "capture hidden states of all nodes",
    ),
    Seam(
        "sglang.srt.speculative.dflash_info_v2.DFlashDraftInputV2",
        (),
        "carry the last committed token",
    ),
    Seam(
        "sglang.srt.speculative.draft_worker_common.make_draft_input_v2",
        (),
        "carry the last committed token",
    ),
    Seam("sglang.srt.lora.layers.unwrap_lora_layer", (), "reach a head under LoRA's wrapper"),
    Seam(
        "sglang.srt.managers.tp_worker.BaseTpWorker.init_weights_update_group",
        ("recv_req",),
        "answer a weight group that does not exist",
    ),
    Seam(
        "sglang.srt.managers.tp_worker.BaseTpWorker.destroy_weights_update_group",
        ("recv_req",),
        "answer a weight group that does not exist",
    ),
    Seam(
        "sglang.srt.managers.tp_worker.BaseTpWorker.init_weights_send_group_for_remote_instance",
        ("recv_req",),
        "answer a weight group that does not exist",
    ),
    Seam(
        "sglang.srt.managers.tp_worker.BaseTpWorker.send_weights_to_remote_instance",
        ("recv_req",),
        "answer a weight group that does not exist",
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.weight_updater"
        ".SchedulerWeightUpdaterManager._select_runners",
        ("selector",),
        "load weights into the model that they are of",
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.weight_updater"
        ".SchedulerWeightUpdaterManager.update_weights_from_disk",
        ("recv_req",),
        "load weights into the model that they are of",
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.weight_updater"
        ".SchedulerWeightUpdaterManager.update_weights_from_tensor",
        ("recv_req",),
        "load weights into the model that they are of",
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.weight_updater"
        ".SchedulerWeightUpdaterManager.update_weights_from_distributed",
        ("recv_req",),
        "load weights into the model that they are of",
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.weight_updater"
        ".SchedulerWeightUpdaterManager.update_weights_from_ipc",
        ("recv_req",),
        "load weights into the model that they are of",
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.weight_updater"
        ".SchedulerWeightUpdaterManager.begin_weight_update",
        ("recv_req",),
        "load weights into the model that they are of",
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.weight_updater"
        ".SchedulerWeightUpdaterManager.end_weight_update",
        ("recv_req",),
        "load weights into the model that they are of",
    ),
    Seam(
        "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
        ".update_weights_from_disk",
        ("model_path", "load_format"),
        "go back to a target's weights",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2"
        "._maybe_merge_trained_mask_embedding",
        (),
        "merge it again after a weight update",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2._init_fused_kv_helper",
        (),
        "stack the drafter's weights again",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2._use_fused_kv_materialize",
        (),
        "follow new weights",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2.speculative_num_draft_tokens",
        (),
        "report the tree's size",
    ),
)
