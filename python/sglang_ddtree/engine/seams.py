"""Everything of SGLang that this project relies on, and whether the installed SGLang has it."""

from __future__ import annotations

import importlib.metadata
import inspect
import pkgutil
from dataclasses import dataclass

SGLANG_VERSION = "0.5.23"


@dataclass(frozen=True)
class Seam:
    """One upstream symbol.

    Attributes:
        path: dotted path.
        parameters: names that its signature must have, in any order; empty for attributes.
        why: what we do with it.
    """

    path: str
    parameters: tuple[str, ...]
    why: str

    def problem(self) -> str | None:
        """Why the installed SGLang does not fit, or ``None``."""
        try:
            target = pkgutil.resolve_name(self.path)
        except (ImportError, AttributeError) as error:
            return f"{self.path} is gone ({error}); it is needed to {self.why}"
        if not self.parameters:
            return None
        found = inspect.signature(target).parameters
        missing = [name for name in self.parameters if name not in found]
        if missing:
            return f"{self.path} lacks parameters {missing}; it is needed to {self.why}"
        return None


_SRT = "sglang.srt"
_ATTENTION = f"{_SRT}.layers.attention"
_GDN = f"{_SRT}.layers.attention.linear.gdn_backend.GDNAttnBackend"
_CONFIGURATOR = f"{_SRT}.mem_cache.kv_cache_configurator"
_DFLASH = f"{_SRT}.speculative.dflash_worker_v2.DFlashWorkerV2"

SEAMS = (
    Seam(
        f"{_SRT}.speculative.spec_info.SpeculativeAlgorithm.register",
        ("name", "supports_overlap", "validate_server_args", "spec_class"),
        "register DDTREE",
    ),
    Seam(
        f"{_SRT}.speculative.spec_registry.CustomSpecAlgo.get_num_tokens_per_req_for_target_verify",
        ("num_draft_tokens", "is_draft_worker"),
        "give drafter and target their own widths",
    ),
    Seam(
        f"{_SRT}.arg_groups.resolution_hooks.register_resolution_hook",
        ("name",),
        "resolve the tree's settings before pools exist",
    ),
    Seam(
        f"{_SRT}.arg_groups.overrides.declare_resolution",
        ("server_args", "source"),
        "declare resolved settings",
    ),
    Seam(
        f"{_SRT}.arg_groups.model_override_base.model_config_of",
        ("server_args",),
        "read the target's config",
    ),
    Seam(f"{_SRT}.server_args.ServerArgs.add_cli_args", ("parser",), "add our flags"),
    Seam(f"{_SRT}.server_args.ServerArgs.from_cli_args", ("args",), "read our flags"),
    Seam(
        f"{_SRT}.plugins.hook_registry.HookRegistry.register",
        ("target", "hook", "hook_type"),
        "change SGLang where it has no seam",
    ),
    Seam(
        f"{_SRT}.speculative.dflash_utils.validate_dflash_request",
        ("req", "enable_overlap"),
        "refuse requests that trees don't serve",
    ),
    Seam(
        f"{_SRT}.speculative.dflash_utils.resolve_dflash_verify_mask_policy",
        ("attn_backend",),
        "mask trees under graphs",
    ),
    Seam(
        f"{_SRT}.speculative.dflash_utils.parse_dflash_draft_config",
        ("draft_hf_config",),
        "read the drafter's config",
    ),
    Seam(
        f"{_SRT}.mem_cache.allocation_sizing.get_req_to_token_extra_context_len",
        (),
        "widen rows for the reserve of a tree",
    ),
    Seam(
        f"{_SRT}.mem_cache.allocation_sizing.get_alloc_reserve_per_decode",
        (),
        "size that reserve",
    ),
    Seam(
        f"{_SRT}.model_executor.model_runner.ModelRunner._extend_forward_kwargs",
        ("forward_batch", "pp_proxy_tensors"),
        "keep the drafter's embedding dtype",
    ),
    Seam(
        f"{_DFLASH}.forward_batch_generation",
        ("batch", "on_publish", "grammar_barrier", "pp_proxy_tensors"),
        "prefill as DFLASH does",
    ),
    Seam(
        f"{_DFLASH}._append_target_hidden_to_draft_kv_by_loc",
        ("target_hidden", "cache_loc", "positions"),
        "write the drafter's KV",
    ),
    Seam(f"{_DFLASH}._maybe_build_draft_sampler", (), "keep the head out of the draft graph"),
    Seam(
        f"{_SRT}.speculative.dflash_info.DFlashVerifyInput.prepare_for_verify",
        ("batch", "target_worker"),
        "prepare the verify forward",
    ),
    Seam(
        f"{_SRT}.models.dflash.DFlashDraftModel.load_weights",
        ("weights",),
        "read a drafter's draft vocabulary",
    ),
    Seam(
        f"{_SRT}.models.dflash.candidate_topk",
        ("hidden", "lm_head", "k", "with_partition"),
        "take candidates from a sharded head",
    ),
    Seam(
        f"{_SRT}.layers.sampler.Sampler.forward",
        ("logits_output", "sampling_info", "positions"),
        "draw the target's token at every node",
    ),
    Seam(
        "sglang.kernels.ops.speculative.cache_locs.assign_extend_cache_locs_func",
        ("req_pool_indices", "req_to_token", "start_offset", "end_offset"),
        "look up a step's KV slots",
    ),
    Seam(
        f"{_SRT}.mem_cache.kv_index_translator.KVIndexTranslator.plan",
        ("req_pool_indices", "seq_lens", "seq_lens_cpu", "write_virtual", "read_extent"),
        "translate a step's KV slots",
    ),
    Seam(
        f"{_SRT}.mem_cache.memory_pool.MHATokenToKVPool.move_kv_cache",
        ("tgt_loc", "src_loc"),
        "commit the accepted path",
    ),
    Seam(
        f"{_SRT}.mem_cache.memory_pool.MLATokenToKVPool.move_kv_cache",
        ("tgt_loc", "src_loc"),
        "commit the accepted path in a latent pool",
    ),
    Seam(
        f"{_ATTENTION}.attention_registry.register_attention_backend",
        ("name",),
        "register the attention backend ddtree",
    ),
    Seam(
        f"{_ATTENTION}.base_attn_backend.AttentionBackend.init_forward_metadata_out_graph",
        ("forward_batch", "in_capture"),
        "load a step's trees outside of its graph",
    ),
    Seam(
        f"{_ATTENTION}.hybrid_attn_backend.HybridAttnBackend._select_backend",
        ("forward_mode",),
        "prefill by one backend and verify trees by another",
    ),
    Seam(
        f"{_SRT}.mem_cache.memory_pool.KVWriteLoc.for_batch",
        ("forward_batch", "swa_loc"),
        "write the rows of a tree",
    ),
    Seam(
        f"{_SRT}.mem_cache.swa_memory_pool.SWAKVPool.translate_loc_from_full_to_swa",
        ("kv_indices",),
        "find the rows of sliding-window layers",
    ),
    Seam(
        f"{_GDN}.forward_extend",
        ("layer", "forward_batch", "mixed_qkv", "a", "b"),
        "verify trees in recurrent layers",
    ),
    Seam(
        f"{_SRT}.layers.radix_linear_attention.RadixLinearAttention.__init__",
        ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "conv_weights", "activation"),
        "know a recurrent layer's shape and weights",
    ),
    Seam(
        f"{_SRT}.mem_cache.memory_pool.HybridReqToTokenPool.mamba2_layer_cache",
        ("layer_id",),
        "read and commit recurrent states",
    ),
    Seam(
        f"{_CONFIGURATOR}.KVCacheConfigurator._handle_max_mamba_cache",
        ("total_rest_memory",),
        "count the recurrent stash in the memory budget",
    ),
    Seam(
        f"{_CONFIGURATOR}.KVCacheConfigurator._calculate_mamba_ratio",
        (),
        "count the state slots of a request",
    ),
    Seam(
        f"{_CONFIGURATOR}._pd_prefill_skips_mamba_spec_state",
        (),
        "leave recurrent snapshots out",
    ),
    Seam(
        f"{_SRT}.layers.attention.hybrid_linear_attn_backend.HybridLinearAttnBackend"
        ".update_mamba_state_after_mtp_verify",
        ("last_correct_step_indices", "mamba_track_indices", "mamba_steps_to_track", "model"),
        "commit recurrent snapshots",
    ),
    Seam(
        f"{_SRT}.runtime_context.mamba_track_grid",
        ("tree_page",),
        "checkpoint recurrent states for the prefix cache",
    ),
    Seam(
        f"{_SRT}.utils.numa_utils.init_threads_binding",
        ("numa_index", "world_size"),
        "bind ranks to cores without a GPU",
    ),
    Seam(
        f"{_SRT}.configs.update_config.adjust_config_with_unaligned_cpu_tp",
        ("model_config", "load_config", "tp_size"),
        "shard heads without a GPU",
    ),
    Seam(
        f"{_SRT}.managers.utils.GenerationBatchResult",
        ("accept_lens", "speculative_output_stride", "next_draft_input", "new_seq_lens"),
        "return a step's tokens",
    ),
    Seam(
        f"{_SRT}.platforms.interface.SRTPlatform.get_kv_pool_cls",
        ("kind",),
        "serve without a GPU",
    ),
    Seam(
        f"{_SRT}.mem_cache.allocation.assign_req_to_token_pool_func",
        ("req_pool_indices", "req_to_token", "start_offset", "end_offset", "out_cache_loc"),
        "serve without a GPU",
    ),
    Seam(
        f"{_SRT}.mem_cache.allocation.get_last_loc_torch",
        ("req_to_token", "req_pool_indices_tensor", "prefix_lens_tensor"),
        "serve pages without a GPU",
    ),
    Seam(
        f"{_SRT}.models.deepseek_common.attention_backend_handler.AttentionBackendRegistry"
        ".register",
        ("backend_name", "handler_func"),
        "serve latent attention without a GPU",
    ),
    Seam(
        f"{_SRT}.arg_groups.model_hook.attention_backends_of",
        (),
        "serve Gemma-4 without a GPU",
    ),
    Seam(
        "sglang.kernels.ops.activation.softcap.softcap_inplace_logits",
        ("full_logits", "final_logit_softcapping"),
        "cap logits without a GPU",
    ),
    Seam(
        f"{_GDN}.forward_decode",
        ("layer", "forward_batch", "mixed_qkv", "a", "b"),
        "serve recurrent layers without a GPU",
    ),
    Seam(
        f"{_SRT}.model_executor.forward_batch_info.ForwardBatch.mamba_track_aligned_lens",
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
    *(
        Seam(
            f"sglang.kernels.ops.attention.triton_gdn_fused_proj.{name}",
            ("mixed_qkvz", "mixed_ba", "num_heads_qk", "num_heads_v", "head_qk", "head_v"),
            "split recurrent projections without a GPU",
        )
        for name in ("fused_qkvzba_split_reshape_cat_contiguous", "fused_qkvzba_split_reshape_cat")
    ),
    Seam(
        f"{_SRT}.layers.quantization.unquant.UnquantizedLinearMethod.apply",
        ("layer", "x", "bias"),
        "multiply a few rows without a GPU",
    ),
    Seam(
        f"{_SRT}.layers.logits_processor.LogitsProcessor._compute_lm_head",
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
        f"{_SRT}.model_executor.model_runner.ModelRunner.maybe_enable_batch_invariant_mode",
        (),
        "sample with a seed without a GPU",
    ),
)


def upstream_has_ddtree() -> bool:
    """Whether this SGLang ships an algorithm of the same name."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    return "DDTREE" in SpeculativeAlgorithm.__members__


def installed_version() -> str:
    return importlib.metadata.version("sglang")


def problems() -> list[str]:
    """Every reason why DDTREE can't run on the installed SGLang; empty when it fits."""
    found = [problem for seam in SEAMS if (problem := seam.problem()) is not None]
    version = installed_version()
    if version != SGLANG_VERSION:
        found.insert(
            0,
            f"sglang {version} is installed, this release is for {SGLANG_VERSION}: "
            f"pip install sglang=={SGLANG_VERSION}",
        )
    return found
