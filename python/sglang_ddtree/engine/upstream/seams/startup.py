"""Settings, flags and the algorithm's place in SGLang."""

from __future__ import annotations

from sglang_ddtree.engine.upstream.seams.seam import Seam

SEAMS = (
    Seam(
        "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.register",
        ("name", "supports_overlap", "validate_server_args", "spec_class"),
        "register DDTREE",
    ),
    Seam(
        "sglang.srt.speculative.spec_registry.CustomSpecAlgo"
        ".get_num_tokens_per_req_for_target_verify",
        ("num_draft_tokens", "is_draft_worker"),
        "give drafter and target their own widths",
    ),
    Seam(
        "sglang.srt.arg_groups.resolution_hooks.register_resolution_hook",
        ("name",),
        "resolve the tree's settings before pools exist",
    ),
    Seam(
        "sglang.srt.arg_groups.overrides.declare_resolution",
        ("server_args", "source"),
        "declare resolved settings",
    ),
    Seam(
        "sglang.srt.arg_groups.model_override_base.model_config_of",
        ("server_args",),
        "read the target's config",
    ),
    Seam("sglang.srt.server_args.ServerArgs.add_cli_args", ("parser",), "add our flags"),
    Seam("sglang.srt.server_args.ServerArgs.from_cli_args", ("args",), "read our flags"),
    Seam(
        "sglang.srt.plugins.hook_registry.HookRegistry.register",
        ("target", "hook", "hook_type"),
        "change SGLang where it has no seam",
    ),
    Seam(
        "sglang.srt.speculative.dflash_utils.parse_dflash_draft_config",
        ("draft_hf_config",),
        "read the drafter's config",
    ),
    Seam(
        "sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len",
        (),
        "widen rows for the reserve of a tree",
    ),
    Seam(
        "sglang.srt.mem_cache.allocation_sizing.get_alloc_reserve_per_decode",
        (),
        "size that reserve",
    ),
    Seam(
        "sglang.srt.arg_groups.choices.add_attention_backend_choices",
        (),
        "offer ddtree as an attention backend",
    ),
    Seam("sglang.srt.arg_groups.overrides.resolving_view", (), "read settings as resolved so far"),
    Seam(
        "sglang.srt.arg_groups.overrides.attention_backends_of",
        (),
        "read settings as resolved so far",
    ),
    Seam(
        "sglang.srt.configs.model_config.AttentionArch", (), "know the kind of a target's attention"
    ),
    Seam(
        "sglang.srt.configs.model_config.is_deepseek_dsa",
        (),
        "know the kind of a target's attention",
    ),
    Seam(
        "sglang.srt.configs.hybrid_arch.mambaish_config",
        (),
        "know whether a target has recurrent layers",
    ),
    Seam(
        "sglang.srt.speculative.spec_registry.CustomSpecAlgo.is_dflash",
        (),
        "answer as a member of the DFLASH family",
    ),
    Seam(
        "sglang.srt.speculative.spec_registry.CustomSpecAlgo.is_dflash_family",
        (),
        "answer as a member of the DFLASH family",
    ),
    Seam(
        "sglang.srt.speculative.spec_registry.CustomSpecAlgo.supports_prefill_shared_read_done",
        (),
        "answer as a member of the DFLASH family",
    ),
    Seam(
        "sglang.srt.speculative.spec_registry.CustomSpecAlgo.supports_target_verify_for_draft",
        (),
        "answer as a member of the DFLASH family",
    ),
    Seam(
        "sglang.srt.managers.overlap_utils.FutureMap", (), "carry tokens from one step to the next"
    ),
    Seam("sglang.srt.utils.is_cuda", (), "know the device"),
    Seam("sglang.srt.utils.is_hip", (), "know the device"),
    Seam("sglang.srt.platforms.current_platform", (), "know whether the CPU platform is active"),
    Seam("sglang.srt.plugins.hook_registry.HookType", (), "say when a hook runs"),
    Seam("sglang.srt.utils.hf_transformers_utils.get_config", (), "read the drafter's config"),
    Seam(
        "sglang.srt.runtime_context.get_context", (), "read the server's settings in its processes"
    ),
    Seam(
        "sglang.srt.runtime_context.get_memory", (), "read the server's settings in its processes"
    ),
    Seam(
        "sglang.srt.runtime_context.get_parallel", (), "read the server's settings in its processes"
    ),
    Seam(
        "sglang.srt.runtime_context.get_schedule", (), "read the server's settings in its processes"
    ),
    Seam(
        "sglang.srt.runtime_context.get_server_args",
        (),
        "read the server's settings in its processes",
    ),
    Seam("sglang.srt.runtime_context.get_spec", (), "read the server's settings in its processes"),
    Seam(
        "sglang.srt.mem_cache.allocation_sizing.get_alloc_page_size",
        (),
        "size the reserve of a tree in pages",
    ),
    Seam("sglang.srt.server_args.ServerArgs.resolve_once", (), "end with the reasons of a refusal"),
    Seam(
        "sglang.srt.managers.scheduler.Scheduler.__init__", (), "refuse what only a scheduler knows"
    ),
    Seam(
        "sglang.srt.model_executor.model_runner.ModelRunner.effective_logical_max_total_num_tokens",
        (),
        "refuse a pool that can't hold one request",
    ),
    Seam(
        "sglang.srt.model_loader.utils.get_model_architecture",
        ("model_config",),
        "see whether SGLang captures a target's layers",
    ),
    Seam(
        "sglang.srt.layers.attention.hybrid_linear_attn_backend.HybridLinearAttnBackend",
        ("full_attn_backend",),
        "find the backend that verifies",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2.alloc_memory_pool",
        (),
        "look at the target's pool first",
    ),
    Seam(
        "sglang.srt.utils.common.configure_logger",
        ("server_args", "prefix"),
        "end processes whose launcher has died",
    ),
    Seam(
        "sglang.srt.session.session_controller.Session.create_req",
        ("req",),
        "replace what a session holds",
    ),
    Seam(
        "sglang.srt.managers.schedule_batch.Req.update_finish_state",
        ("new_accepted_len",),
        "end an answer where plain decoding ends it",
    ),
    Seam(
        "sglang.srt.managers.schedule_batch.Req.tail_str",
        ("new_accepted_len",),
        "keep back text that a stop may cut off",
    ),
    Seam(
        "sglang.srt.managers.schedule_batch.Req.check_match_stop_str_prefix",
        ("self",),
        "keep back text that a stop may cut off",
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.output_streamer"
        "._GenerationStreamAccumulator.accept",
        ("req",),
        "keep back text that a stop may cut off",
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter"
        ".report_decode_stats",
        (),
        "report the tree in metrics",
    ),
    Seam("sglang.srt.server_args.ServerArgs.resolved_dict", (), "report the tree in /server_info"),
    Seam(
        "sglang.srt.configs.model_config.ModelImpl",
        (),
        "know which implementation of a model is asked for",
    ),
    Seam(
        "sglang.srt.runtime_context.get_exec",
        (),
        "read the server's settings in its processes",
    ),
    Seam(
        "sglang.srt.runtime_context.get_model",
        (),
        "read the server's settings in its processes",
    ),
    Seam(
        "sglang.srt.runtime_context.get_serving",
        (),
        "read the server's settings in its processes",
    ),
)
