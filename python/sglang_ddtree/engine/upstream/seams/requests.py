"""Requests."""

from __future__ import annotations

from sglang_ddtree.engine.upstream.seams.seam import Seam

SEAMS = (
    Seam(
        "sglang.srt.speculative.dflash_utils.validate_dflash_request",
        ("req", "enable_overlap"),
        "refuse requests that trees don't serve",
    ),
    Seam(
        "sglang.srt.entrypoints.engine._scheduler_died_error",
        ("rank", "proc"),
        "end a launcher whose scheduler refused",
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2._validate_phase1_sampling_support",
        ("batch",),
        "keep back a warning about chains",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request",
        ("obj", "request"),
        "refuse requests before they are queued",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._dispatch_to_scheduler",
        ("obj",),
        "refuse requests before they are queued",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._async_dispatch_to_scheduler",
        ("obj",),
        "refuse requests before they are queued",
    ),
    Seam(
        "sglang.srt.managers.io_struct.msgpack_encode",
        ("obj",),
        "refuse requests before they are queued",
    ),
    Seam(
        "sglang.srt.managers.io_struct._msgpack_decoder",
        (),
        "refuse requests before they are queued",
    ),
    Seam(
        "sglang.srt.managers.io_struct._USE_PICKLE_IPC",
        (),
        "refuse requests before they are queued",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request",
        ("obj", "input_ids"),
        "refuse requests before they are queued",
    ),
    Seam(
        "sglang.srt.entrypoints.http_server.serve_generate_request",
        ("obj", "request"),
        "refuse requests before they are queued",
    ),
    Seam(
        "sglang.srt.entrypoints.http_server._create_error_response",
        ("e",),
        "refuse requests before they are queued",
    ),
    Seam(
        "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat._convert_to_internal_request",
        ("request", "raw_request"),
        "refuse requests before they are queued",
    ),
    Seam(
        "sglang.srt.entrypoints.openai.serving_responses.OpenAIServingResponses"
        "._generate_with_builtin_tools",
        ("request_id", "request_prompt", "adapted_request", "raw_request"),
        "refuse requests before they are queued",
    ),
    Seam(
        "sglang.srt.entrypoints.ollama.serving.OllamaServing.handle_chat",
        ("request", "raw_request"),
        "refuse requests before they are queued",
    ),
    Seam(
        "sglang.srt.entrypoints.ollama.serving.OllamaServing.handle_generate",
        ("request", "raw_request"),
        "refuse requests before they are queued",
    ),
    Seam(
        "sglang.srt.entrypoints.ollama.serving.OllamaServing._convert_options_to_sampling_params",
        ("options",),
        "refuse requests before they are queued",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin.start_profile",
        ("req",),
        "answer a profile that can't be made",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin._execute_profile",
        ("req",),
        "answer a profile that can't be made",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"
        ".start_expert_distribution_record",
        ("self",),
        "refuse to record experts without a recorder",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"
        ".stop_expert_distribution_record",
        ("self",),
        "refuse to record experts without a recorder",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"
        ".dump_expert_distribution_record",
        ("self",),
        "refuse to record experts without a recorder",
    ),
    Seam(
        "sglang.srt.entrypoints.ollama.serving.OllamaServing._stream_chat_response",
        ("gen_request", "raw_request", "model_name"),
        "stream whole answers to Ollama's clients",
    ),
    Seam(
        "sglang.srt.entrypoints.ollama.serving.OllamaServing._stream_generate_response",
        ("gen_request", "raw_request", "model_name"),
        "stream whole answers to Ollama's clients",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager.create_abort_task",
        ("obj",),
        "end the request of an Ollama client that goes away",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics",
        ("meta_info", "recv_obj", "i"),
        "report the tree in meta_info",
    ),
    Seam(
        "sglang.srt.entrypoints.ollama.protocol",
        (),
        "stream whole answers to Ollama's clients",
    ),
    Seam(
        "sglang.srt.managers.io_struct.GenerateReqInput",
        (),
        "see requests where they come in",
    ),
    Seam(
        "sglang.srt.sampling.sampling_params.SamplingParams",
        (),
        "know the sampling parameters of a request",
    ),
)
