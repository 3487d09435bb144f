"""Attention over trees."""

from __future__ import annotations

from sglang_ddtree.engine.upstream.seams.seam import Seam

SEAMS = (
    Seam(
        "sglang.srt.speculative.dflash_utils.resolve_dflash_verify_mask_policy",
        ("attn_backend",),
        "mask trees under graphs",
    ),
    Seam(
        "sglang.srt.layers.attention.attention_registry.register_attention_backend",
        ("name",),
        "register the attention backend ddtree",
    ),
    Seam(
        "sglang.srt.layers.attention.base_attn_backend.AttentionBackend"
        ".init_forward_metadata_out_graph",
        ("forward_batch", "in_capture"),
        "load a step's trees outside of its graph",
    ),
    Seam(
        "sglang.srt.layers.attention.hybrid_attn_backend.HybridAttnBackend._select_backend",
        ("forward_mode",),
        "prefill by one backend and verify trees by another",
    ),
    Seam(
        "sglang.srt.mem_cache.memory_pool.KVWriteLoc.for_batch",
        ("forward_batch", "swa_loc"),
        "write the rows of a tree",
    ),
    Seam(
        "sglang.srt.mem_cache.swa_memory_pool.SWAKVPool.translate_loc_from_full_to_swa",
        ("kv_indices",),
        "find the rows of sliding-window layers",
    ),
    Seam(
        "sglang.srt.layers.attention.base_attn_backend.AttentionBackend.data_type",
        (),
        "stand in SGLang's place for attention",
    ),
    Seam(
        "sglang.srt.layers.attention.base_attn_backend.AttentionBackend.forward_extend",
        (),
        "stand in SGLang's place for attention",
    ),
    Seam(
        "sglang.srt.layers.attention.base_attn_backend.AttentionBackend"
        ".get_cuda_graph_seq_len_fill_value",
        (),
        "stand in SGLang's place for attention",
    ),
    Seam(
        "sglang.srt.layers.attention.base_attn_backend.AttentionBackend.init_cuda_graph_state",
        (),
        "stand in SGLang's place for attention",
    ),
    Seam(
        "sglang.srt.layers.attention.base_attn_backend.AttentionBackend.kv_index_translator",
        (),
        "stand in SGLang's place for attention",
    ),
    Seam(
        "sglang.srt.layers.attention.base_attn_backend.AttentionBackend.needs_cpu_seq_lens",
        (),
        "stand in SGLang's place for attention",
    ),
    Seam(
        "sglang.srt.layers.attention.base_attn_backend.AttentionBackend.support_triton",
        (),
        "stand in SGLang's place for attention",
    ),
    Seam(
        "sglang.srt.layers.radix_attention.AttentionType",
        (),
        "know an attention layer's kind and shape",
    ),
    Seam(
        "sglang.srt.layers.radix_attention.RadixAttention",
        (),
        "know an attention layer's kind and shape",
    ),
    Seam(
        "sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods"
        ".AttnForwardMethod",
        (),
        "serve latent attention",
    ),
    Seam(
        "sglang.srt.layers.attention.triton_backend.TritonAttnBackend",
        (),
        "know which backend applies a custom mask",
    ),
)
