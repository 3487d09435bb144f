"""The DDTREE worker: draft, grow, verify, accept, commit."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_func
from sglang.srt.lora.layers import unwrap_lora_layer
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.model_executor.model_runner import SamplingPrewarmResult
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.draft_worker_common import make_draft_input_v2
from sglang.srt.speculative.spec_tp_sync import SpecTpSyncSite
from sglang.srt.speculative.spec_utils import draft_tp_context

from sglang_ddtree.engine import recurrent
from sglang_ddtree.engine.attention.registry import reads_tree, verifying_backend
from sglang_ddtree.engine.config_error import stop_on
from sglang_ddtree.engine.drafting import heads
from sglang_ddtree.engine.drafting.block import draft_block_batch
from sglang_ddtree.engine.kv_rows import KVRows
from sglang_ddtree.engine.options import options_of
from sglang_ddtree.engine.rank_check import check_ranks
from sglang_ddtree.engine.sampling import repeat_rows
from sglang_ddtree.engine.startup.kernels import kernels_of
from sglang_ddtree.engine.startup.pool import pool_problems
from sglang_ddtree.engine.step import Step
from sglang_ddtree.engine.verify_input import TreeVerifyInput, flat_custom_mask
from sglang_ddtree.tree import Acceptance, Candidates, DraftTree

if TYPE_CHECKING:
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
    from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)


class DDTreeWorker(DFlashWorkerV2):
    """Speculative worker that verifies a draft tree a step.

    Drafter set-up, prefill and the drafter's KV come from ``DFlashWorkerV2``
    (srt/speculative/dflash_worker_v2.py@0.5.23); the decode step is this class's own.
    """

    def __init__(
        self, server_args: ServerArgs, gpu_id: int, nccl_port: int, target_worker: TpModelWorker
    ) -> None:
        self.options = options_of(server_args)
        # DFlashWorkerV2 takes its block size from the field that sizes pools, which is our window.
        with get_spec().override(speculative_num_draft_tokens=self.options.block_size):
            super().__init__(server_args, gpu_id, nccl_port, target_worker)
        self.speculative_num_draft_tokens = self.options.verify_width  # SGLang reports it
        self.max_position = self.model_runner.model_config.context_len - 1
        self._backend_reads_tree = False
        self._recurrent: recurrent.RecurrentLayers | None = None
        self._take_embeddings()

    def _take_embeddings(self) -> None:
        """The target's two tables, as the drafter reads them."""
        target_model = self.model_runner.model
        lm_head = unwrap_lora_layer(target_model.lm_head)
        self.head = heads.build(self.draft_model, lm_head, self.options.topk)
        self.embed_tokens = unwrap_lora_layer(target_model.get_input_embeddings())

    def alloc_memory_pool(self, *args: Any, **kwargs: Any) -> None:
        """Allocate the drafter's pool, unless the target's can't hold one request of the tree.

        Raises:
            DDTreeConfigError: every request would end for want of memory.
        """
        held = self.model_runner.effective_logical_max_total_num_tokens
        page_size = self.model_runner.token_to_kv_pool_allocator.page_size
        stop_on(pool_problems(self.options, held, page_size))
        super().alloc_memory_pool(*args, **kwargs)

    def follow_weights(self) -> None:
        """Derive anew what this worker took from weights, after either model's were loaded.

        Raises:
            DDTreeConfigError: the drafter's draft vocabulary can't be taken from the target's head.
        """
        self._maybe_merge_trained_mask_embedding()
        self._take_embeddings()
        if self._use_fused_kv_materialize:
            self._init_fused_kv_helper()
        if self._recurrent is not None:
            self._recurrent.follow_weights()

    def init_attention_backends(self) -> None:
        super().init_attention_backends()
        kernels = kernels_of(self.model_runner, self.options)
        self._recurrent = recurrent.attach(self.model_runner, self.options, kernels)
        self._kv_rows = KVRows(self.model_runner.token_to_kv_pool, kernels.move)
        self._grow_tree, self._accept_path = kernels.grow.load(), kernels.accept.load()
        backend = self.model_runner.attn_backend
        self._backend_reads_tree = reads_tree(backend)
        if self._target_tp_rank == 0:
            logger.info(
                "DDTREE: %s on %s; trees verified by %s%s\n%s",
                self.options,
                self.device,
                type(verifying_backend(backend)).__name__,
                "" if self._backend_reads_tree else " with a custom mask",
                replace(kernels, move=self._kv_rows.choice),
            )

    def prewarm_sampling(self) -> SamplingPrewarmResult:
        """Nothing to rehearse: the chain's rejection sampler never runs."""
        return SamplingPrewarmResult()

    def _validate_phase1_sampling_support(self, batch: ScheduleBatch) -> None:
        """No chain is verified, so that its warning about sampling would be untrue: a tree's
        sampled tokens are the target's own (``_accept``).
        """

    def _maybe_build_draft_sampler(self) -> None:
        """Keep the drafter's head out of its graph: a tree needs candidates, not an argmax."""
        return None

    def forward_batch_generation(
        self,
        batch: ScheduleBatch,
        on_publish: Any = None,
        grammar_barrier: Any = None,
        pp_proxy_tensors: Any = None,
    ) -> GenerationBatchResult:
        """Run one scheduler iteration: prefill as DFLASH does, decode as a tree."""
        if batch.forward_mode.is_extend() or batch.forward_mode.is_idle():
            return super().forward_batch_generation(
                batch, on_publish, grammar_barrier, pp_proxy_tensors
            )
        return self._decode(batch, on_publish)

    @torch.inference_mode()
    def _decode(self, batch: ScheduleBatch, on_publish: Any) -> GenerationBatchResult:
        step = self._open_step(batch)
        candidates = self._draft(batch, step)
        tree = self._grow(step, candidates)
        logits, can_run_graph = self._verify(batch, step, tree)
        accepted = self._accept(batch.sampling_info, step, tree, logits)
        check_ranks(step, tree, accepted)
        return self._commit(batch, step, accepted, logits, can_run_graph, on_publish)

    def _open_step(self, batch: ScheduleBatch) -> Step:
        """Look up the slots that this step writes, all reserved by the scheduler beforehand."""
        draft_input: DFlashDraftInputV2 = batch.spec_info
        options = self.options
        prefix_lens, window = batch.seq_lens, options.window
        if prefix_lens.device.type != "cpu":
            # Overlap scheduling may have produced the lengths on another stream.
            prefix_lens.record_stream(torch.get_device_module(self.device).current_stream())
        bs = prefix_lens.shape[0]
        slots = assign_extend_cache_locs_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=self.model_runner.req_to_token_pool.req_to_token,
            start_offset=prefix_lens,
            end_offset=prefix_lens + window,
            batch_size=bs,
            draft_token_num=window,
            device=self.device,
        )
        lens_cpu = batch.seq_lens_cpu
        lens_cpu = draft_input.nxt_kv_lens_cpu if lens_cpu is None else lens_cpu
        plan = self.model_runner.kv_index_translator.plan(
            req_pool_indices=batch.req_pool_indices,
            seq_lens=prefix_lens,
            seq_lens_cpu=lens_cpu,
            write_virtual=slots,
            read_extent=window,
        )
        return Step(
            options=options,
            root_tokens=draft_input.bonus_tokens,
            prefix_lens=prefix_lens,
            slots=slots.view(bs, window),
            plan=plan,
            prefix_lens_cpu=lens_cpu,
        )

    def _draft(self, batch: ScheduleBatch, step: Step) -> Candidates:
        """One drafter forward over ``[root, mask x (B-1)]``: candidates of each following depth."""
        bs, block = step.root_tokens.shape[0], step.options.block_size
        block_ids = torch.full(
            (bs, block), self._mask_token_id, dtype=torch.int64, device=self.device
        )
        block_ids[:, 0] = step.root_tokens
        embeds = self.embed_tokens(block_ids) * self._noise_embed_scale
        positions = (step.prefix_lens[:, None] + self._block_pos_offsets).clamp(
            max=self.max_position
        )
        forward_batch = draft_block_batch(
            batch, step, block_ids, embeds, positions, self._draft_block_spec_info
        )
        step.plan.bind(
            forward_batch, self.draft_model_runner.kv_index_translator, cols=slice(0, block)
        )
        with draft_tp_context(self.draft_parallel_layout):
            out = self.draft_model_runner.forward(forward_batch).logits_output
            hidden = out.hidden_states.view(bs, block, -1)[:, 1:]
            return self.head.propose(hidden, step.root_tokens)

    def _grow(self, step: Step, candidates: Candidates) -> DraftTree:
        """The tree of this step, no deeper than the context allows."""
        room = self.max_position - step.prefix_lens
        return self._grow_tree(candidates, step.root_tokens, step.options.growth, max_depth=room)

    def _verify(
        self, batch: ScheduleBatch, step: Step, tree: DraftTree
    ) -> tuple[LogitsProcessorOutput, bool]:
        """One target forward over all nodes: logits ``[bs * N, V]`` and captured hidden states."""
        width = step.options.verify_width
        lens_cpu = step.prefix_lens_cpu + width
        verify_input = TreeVerifyInput(
            draft_token=tree.tokens.flatten(),
            positions=tree.positions(step.prefix_lens).flatten(),
            draft_token_num=width,
            custom_mask=(
                None
                if step.options.is_chain or self._backend_reads_tree
                else flat_custom_mask(tree, step.prefix_lens, int(step.prefix_lens_cpu.sum()))
            ),
            capture_hidden_mode=CaptureHiddenMode.FULL,
            kv_loc_plan=step.plan,
            kv_loc_cols=slice(0, width),
            tree=tree,
        )
        if self._recurrent is not None:
            self._recurrent.begin(verify_input)
        batch.out_cache_loc = step.slots[:, :width].reshape(-1)
        host_lens = batch.seq_lens_cpu, batch.seq_lens_sum
        batch.seq_lens_cpu, batch.seq_lens_sum = lens_cpu, int(lens_cpu.sum())
        forward_batch, _ = verify_input.prepare_for_verify(batch, self.target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = host_lens
        out = self.target_worker.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True, skip_attn_backend_init=True
        )
        logits = out.logits_output
        processor = self._target_logits_processor
        if processor is not None and processor.is_deferred_shard(logits.next_token_logits):
            logits.next_token_logits = processor.finish_deferred_gather(logits.next_token_logits)
        return logits, out.can_run_cuda_graph

    def _accept(
        self,
        sampling_info: SamplingBatchInfo,
        step: Step,
        tree: DraftTree,
        logits: LogitsProcessorOutput,
    ) -> Acceptance:
        """Draw the target's token at every node and walk the tree along the draws.

        What the drafter proposed never influences a draw, so the output has exactly the target's
        distribution. Rank 0 decides for its tensor-parallel group.
        """
        width = step.options.verify_width
        if sampling_info is None or sampling_info.is_all_greedy:
            target_tokens = logits.next_token_logits.argmax(dim=-1)
            site = SpecTpSyncSite.DFLASH_ACCEPT_GREEDY
        else:
            target_tokens = self.model_runner.sampler(
                logits,
                repeat_rows(sampling_info, width),
                return_logprob=False,
                top_logprobs_nums=[],
                token_ids_logprobs=[],
                positions=tree.positions(step.prefix_lens).flatten(),
            ).long()
            site = SpecTpSyncSite.DFLASH_ACCEPT_SAMPLE
        target_tokens = self._tp_sync.sync(site, target_tokens)
        return self._accept_path(tree, target_tokens.view(-1, width), max_depth=step.options.depths)

    def _commit(
        self,
        batch: ScheduleBatch,
        step: Step,
        accepted: Acceptance,
        logits: LogitsProcessorOutput,
        can_run_graph: bool,
        on_publish: Any,
    ) -> GenerationBatchResult:
        """Make the accepted path, and nothing else, the request's state."""
        commit_lens = accepted.length + 1
        new_seq_lens = step.prefix_lens + commit_lens
        if on_publish is not None:
            on_publish(new_seq_lens)
        path = accepted.path
        bs, depth = path.shape
        if not step.options.is_chain:
            self._kv_rows.commit(step.slots, accepted)
        if self._recurrent is not None:
            self._recurrent.commit(batch, accepted, step.prefix_lens)
        hidden = logits.hidden_states.view(bs, step.options.verify_width, -1)
        hidden = hidden.gather(1, path[..., None].expand(-1, -1, hidden.shape[-1]))
        positions = step.prefix_lens[:, None] + self._block_pos_offsets[:depth]
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=hidden.reshape(bs * depth, -1),
            cache_loc=step.plan.write_ids(
                self.draft_model_runner.kv_index_translator, cols=slice(0, depth)
            ),
            positions=positions.clamp(max=self.max_position).flatten(),
        )
        logits.hidden_states = None
        return GenerationBatchResult(
            logits_output=logits,
            next_token_ids=accepted.tokens.reshape(-1),
            accept_lens=commit_lens.to(torch.int32),
            can_run_cuda_graph=can_run_graph,
            next_draft_input=make_draft_input_v2(
                bonus_tokens=accepted.bonus, new_seq_lens=new_seq_lens
            ),
            speculative_num_draft_tokens=self.options.window,
            speculative_output_stride=accepted.tokens.shape[1],
            new_seq_lens=new_seq_lens,
        )
