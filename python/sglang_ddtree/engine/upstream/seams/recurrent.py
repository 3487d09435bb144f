"""Recurrent layers and their memory."""

from __future__ import annotations

from sglang_ddtree.engine.upstream.seams.seam import Seam

SEAMS = (
    Seam(
        "sglang.srt.layers.attention.linear.gdn_backend.GDNAttnBackend.forward_extend",
        ("layer", "forward_batch", "mixed_qkv", "a", "b"),
        "verify trees in recurrent layers",
    ),
    Seam(
        "sglang.srt.layers.radix_linear_attention.RadixLinearAttention.__init__",
        ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "conv_weights", "activation"),
        "know a recurrent layer's shape and weights",
    ),
    Seam(
        "sglang.srt.mem_cache.memory_pool.HybridReqToTokenPool.mamba2_layer_cache",
        ("layer_id",),
        "read and commit recurrent states",
    ),
    Seam(
        "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._handle_max_mamba_cache",
        ("total_rest_memory",),
        "count the recurrent stash in the memory budget",
    ),
    Seam(
        "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._calculate_mamba_ratio",
        (),
        "count the state slots of a request",
    ),
    Seam(
        "sglang.srt.mem_cache.kv_cache_configurator._pd_prefill_skips_mamba_spec_state",
        (),
        "leave recurrent snapshots out",
    ),
    Seam(
        "sglang.srt.layers.attention.hybrid_linear_attn_backend.HybridLinearAttnBackend"
        ".update_mamba_state_after_mtp_verify",
        ("last_correct_step_indices", "mamba_track_indices", "mamba_steps_to_track", "model"),
        "commit recurrent snapshots",
    ),
    Seam(
        "sglang.srt.runtime_context.mamba_track_grid",
        ("tree_page",),
        "checkpoint recurrent states for the prefix cache",
    ),
    Seam(
        "sglang.srt.arg_groups.model_override_base.mamba_extra_buffer_of",
        (),
        "know how states are kept for the prefix cache",
    ),
    Seam("sglang.srt.configs.mamba_utils.mamba2_state_dtype", (), "know the dtypes of states"),
)
