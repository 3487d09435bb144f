"""``sglang-ddtree drafter`` and ``probe``: no server needs these."""

from __future__ import annotations

from sglang_ddtree.engine.upstream.seams.seam import Seam

SEAMS = (
    Seam("sglang.srt.configs.model_config.ModelConfig", (), "read a target's config"),
    Seam(
        "sglang.srt.models.registry.ModelRegistry", (), "know whether SGLang captures from a target"
    ),
    Seam(
        "sglang.srt.distributed.device_communicators.pcie_ipc_ar.PcieIpcCommunicator",
        (),
        "time SGLang's PCIe all-reduce",
    ),
    Seam(
        "sglang.srt.entrypoints.engine.Engine.run_scheduler_process_func",
        (),
        "capture hidden states offline",
    ),
    Seam(
        "sglang.srt.managers.scheduler.run_scheduler_process", (), "capture hidden states offline"
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.batch_result_processor"
        ".SchedulerBatchResultProcessor._append_prefill_hidden_states",
        (),
        "capture hidden states offline",
    ),
    Seam("sglang.srt.server_args.prepare_server_args", (), "capture hidden states offline"),
    Seam("sglang.srt.utils.kill_process_tree", (), "end an offline engine"),
    Seam("sglang.srt.layers.rotary_embedding.get_rope", (), "give a drafter its target's rope"),
    Seam(
        "sglang.srt.speculative.dflash_utils.build_target_layer_ids",
        (),
        "choose the layers that a drafter reads",
    ),
    Seam("sglang.srt.utils.hf_transformers_utils.get_tokenizer", (), "find a mask token"),
    Seam(
        "sglang.srt.managers.tokenizer_manager.SignalHandler.sigterm_handler",
        (),
        "end an offline engine at once",
    ),
)
