"""What lets stock SGLang run without a GPU: checked where the CPU platform is active."""

from __future__ import annotations

from sglang_ddtree.engine.upstream.seams.seam import Seam

SEAMS = (
    Seam(
        "sglang.srt.utils.numa_utils.init_threads_binding",
        ("numa_index", "world_size"),
        "bind ranks to cores without a GPU",
    ),
    Seam(
        "sglang.srt.configs.update_config.adjust_config_with_unaligned_cpu_tp",
        ("model_config", "load_config", "tp_size"),
        "shard heads without a GPU",
    ),
    Seam(
        "sglang.srt.platforms.interface.SRTPlatform.get_kv_pool_cls",
        ("kind",),
        "serve without a GPU",
    ),
    Seam(
        "sglang.srt.mem_cache.allocation.assign_req_to_token_pool_func",
        ("req_pool_indices", "req_to_token", "start_offset", "end_offset", "out_cache_loc"),
        "serve without a GPU",
    ),
    Seam(
        "sglang.srt.mem_cache.allocation.get_last_loc_torch",
        ("req_to_token", "req_pool_indices_tensor", "prefix_lens_tensor"),
        "serve pages without a GPU",
    ),
    Seam(
        "sglang.srt.models.deepseek_common.attention_backend_handler.AttentionBackendRegistry"
        ".register",
        ("backend_name", "handler_func"),
        "serve latent attention without a GPU",
    ),
    Seam(
        "sglang.srt.arg_groups.model_hook.attention_backends_of", (), "serve Gemma-4 without a GPU"
    ),
    Seam(
        "sglang.srt.layers.attention.linear.gdn_backend.GDNAttnBackend.forward_decode",
        ("layer", "forward_batch", "mixed_qkv", "a", "b"),
        "serve recurrent layers without a GPU",
    ),
    Seam(
        "sglang.srt.model_executor.forward_batch_info.ForwardBatch.mamba_track_aligned_lens",
        (),
        "checkpoint a prefill's states without a GPU",
    ),
    Seam(
        "sglang.kernels.ops.attention.fla.layernorm_gated.layernorm_fn",
        ("x", "weight", "bias", "z", "eps", "group_size", "norm_before_gate", "is_rms_norm"),
        "gate recurrent layers without a GPU",
    ),
    Seam(
        "sglang.kernels.ops.elementwise.elementwise.fused_sigmoid_mul",
        ("attn_output", "gate", "inplace", "quant"),
        "gate attention layers without a GPU",
    ),
    Seam(
        "sglang.kernels.ops.attention.triton_gdn_fused_proj"
        ".fused_qkvzba_split_reshape_cat_contiguous",
        ("mixed_qkvz", "mixed_ba", "num_heads_qk", "num_heads_v", "head_qk", "head_v"),
        "split recurrent projections without a GPU",
    ),
    Seam(
        "sglang.kernels.ops.attention.triton_gdn_fused_proj.fused_qkvzba_split_reshape_cat",
        ("mixed_qkvz", "mixed_ba", "num_heads_qk", "num_heads_v", "head_qk", "head_v"),
        "split recurrent projections without a GPU",
    ),
    Seam(
        "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply",
        ("layer", "x", "bias"),
        "multiply a few rows without a GPU",
    ),
    Seam(
        "sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head",
        ("hidden_states", "lm_head"),
        "multiply a few rows without a GPU",
    ),
    Seam(
        "sglang.kernels.ops.attention.table_qk_norm_rope.table_qk_norm_rope_",
        ("qkv", "positions", "q_weight", "k_weight", "cos_sin_cache", "num_q_heads", "head_dim"),
        "run a bfloat16 drafter without a GPU",
    ),
    Seam(
        "sglang.kernels.ops.sampling.murmur_hash.murmur_hash32",
        ("seed", "positions", "col_indices"),
        "sample with a seed without a GPU",
    ),
    Seam(
        "sglang.srt.model_executor.model_runner.ModelRunner.maybe_enable_batch_invariant_mode",
        (),
        "sample with a seed without a GPU",
    ),
    Seam(
        "sglang.srt.layers.attention.base_attn_backend.AttentionBackend.forward_decode",
        (),
        "serve attention without a GPU",
    ),
    Seam(
        "sglang.srt.layers.attention.base_attn_backend.AttentionBackend.init_forward_metadata",
        (),
        "serve attention without a GPU",
    ),
    Seam(
        "sglang.srt.layers.attention.linear.gdn_backend.GDNAttnBackend.forward_metadata",
        (),
        "serve recurrent layers without a GPU",
    ),
    Seam(
        "sglang.srt.layers.attention.linear.gdn_backend.GDNAttnBackend.init_forward_metadata",
        (),
        "serve recurrent layers without a GPU",
    ),
    Seam(
        "sglang.srt.layers.attention.linear.gdn_backend.GDNAttnBackend.req_to_token_pool",
        (),
        "serve recurrent layers without a GPU",
    ),
    Seam(
        "sglang.srt.configs.hybrid_arch.hybrid_gdn_config",
        (),
        "serve recurrent layers without a GPU",
    ),
    Seam(
        "sglang.srt.layers.vocab_parallel_embedding.UnquantizedEmbeddingMethod",
        (),
        "multiply a few rows without a GPU",
    ),
    Seam("sglang.srt.mem_cache.allocation.get_last_loc", (), "serve pages without a GPU"),
    Seam(
        "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool._init_kv_copy_and_warmup",
        (),
        "move KV rows without a GPU",
    ),
    Seam(
        "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool._kv_copy_config",
        (),
        "move KV rows without a GPU",
    ),
    Seam(
        "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool._move_kv_cache_impl",
        (),
        "move KV rows without a GPU",
    ),
    Seam(
        "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool.k_buffer",
        (),
        "move KV rows without a GPU",
    ),
    Seam(
        "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool.v_buffer",
        (),
        "move KV rows without a GPU",
    ),
    Seam("sglang.srt.mem_cache.memory_pool.move_kv_cache_native", (), "move KV rows without a GPU"),
    Seam(
        "sglang.srt.model_executor.model_runner.adjust_config_with_unaligned_cpu_tp",
        (),
        "shard heads without a GPU",
    ),
    Seam(
        "sglang.srt.platforms.cpu.CpuDeviceMixin._enum",
        (),
        "be a platform of SGLang's without a GPU",
    ),
    Seam(
        "sglang.srt.platforms.cpu.CpuDeviceMixin.get_device",
        (),
        "be a platform of SGLang's without a GPU",
    ),
    Seam(
        "sglang.srt.platforms.cpu.CpuDeviceMixin.get_torch_profiler_activity",
        (),
        "be a platform of SGLang's without a GPU",
    ),
    Seam(
        "sglang.srt.platforms.cpu.CpuDeviceMixin.get_torch_profiler_activity_str",
        (),
        "be a platform of SGLang's without a GPU",
    ),
    Seam(
        "sglang.srt.platforms.cpu.CpuDeviceMixin.is_pin_memory_available",
        (),
        "be a platform of SGLang's without a GPU",
    ),
    Seam(
        "sglang.srt.platforms.interface.SRTPlatform.apply_server_args_defaults",
        (),
        "be a platform of SGLang's without a GPU",
    ),
    Seam(
        "sglang.srt.platforms.interface.SRTPlatform.capabilities",
        (),
        "be a platform of SGLang's without a GPU",
    ),
    Seam(
        "sglang.srt.platforms.interface.SRTPlatform.get_compile_backend",
        (),
        "be a platform of SGLang's without a GPU",
    ),
    Seam(
        "sglang.srt.platforms.interface.SRTPlatform.get_default_attention_backend",
        (),
        "be a platform of SGLang's without a GPU",
    ),
    Seam(
        "sglang.srt.platforms.interface.SRTPlatform"
        ".get_default_speculative_draft_attention_backend",
        (),
        "be a platform of SGLang's without a GPU",
    ),
    Seam(
        "sglang.srt.platforms.interface.SRTPlatform.get_speculative_cache_locs_fn",
        (),
        "be a platform of SGLang's without a GPU",
    ),
    Seam(
        "sglang.srt.platforms.interface.SRTPlatform.init_backend",
        (),
        "be a platform of SGLang's without a GPU",
    ),
    Seam(
        "sglang.srt.platforms.interface.SRTPlatform.support_mamba_cache_extra_buffer",
        (),
        "be a platform of SGLang's without a GPU",
    ),
    Seam(
        "sglang.srt.platforms.interface.SRTPlatform.supports_speculative_algorithm",
        (),
        "be a platform of SGLang's without a GPU",
    ),
    Seam(
        "sglang.srt.platforms.interface.SRTPlatform.supports_speculative_draft_attention_backend",
        (),
        "be a platform of SGLang's without a GPU",
    ),
    Seam(
        "sglang.srt.platforms.device_mixin.PlatformEnum",
        (),
        "be a platform of SGLang's without a GPU",
    ),
    Seam(
        "sglang.srt.platforms.interface.KVPoolKind", (), "be a platform of SGLang's without a GPU"
    ),
    Seam(
        "sglang.srt.platforms.interface.PlatformCapabilities",
        (),
        "be a platform of SGLang's without a GPU",
    ),
    Seam(
        "sglang.kernels.ops.activation.softcap.softcap_inplace_logits",
        ("full_logits", "final_logit_softcapping"),
        "cap logits without a GPU",
    ),
)
