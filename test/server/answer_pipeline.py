"""What becomes of an answer's tokens on their way to the client, without a model.

A program of its own, because it changes SGLang. It reads a JSON list of questions: ``tokens`` of
an answer, ``steps`` (how many of them each decode step adds), ``sampling`` and whether it is a
``stream``, of one of the ``servers`` (their flags). Each goes through SGLang's
request record, output streamer and detokenizer. It writes a JSON list of ``deltas`` of text,
``tokens`` and ``reason``.
"""

from __future__ import annotations

import json
import sys
from array import array
from types import SimpleNamespace
from typing import Any

from sglang.launch_server import load_plugins, prepare_server_args
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers import detokenizer_manager
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.scheduler_components import output_streamer
from sglang.srt.runtime_context import publish
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.utils.hf_transformers_utils import get_tokenizer

PROMPT = [5, 6, 7]


class Pipeline:
    """Of one server."""

    def __init__(self, flags: list[str]) -> None:
        self.args = prepare_server_args(flags)
        self.tokenizer = get_tokenizer(self.args.model_path)

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        publish(self.args, role="scheduler")
        params = SamplingParams(**question["sampling"])
        params.normalize(self.tokenizer)
        req = Req("0", "", array("q", PROMPT), params, stream=question["stream"], vocab_size=2**20)
        req.tokenizer = self.tokenizer
        detokenizer = self._detokenizer()
        deltas: list[str] = []
        sent: list[int] = []
        start = 0
        for count in question["steps"]:
            step = question["tokens"][start : start + count]
            start += count
            req.output_ids.extend(step)
            req.update_finish_state(len(step))
            output = self._streamer()
            output.accept(req=req)
            if output.rids:
                deltas += detokenizer._decode_batch_token_id_output(_batch(output))
                sent += output.output_ids[0]
            if req.finished():
                return {"deltas": deltas, "tokens": sent, "reason": req.finished_reason.to_json()}
        raise ValueError("the answer has no end")

    def _detokenizer(self) -> Any:
        manager = detokenizer_manager.DetokenizerManager
        detokenizer = manager.__new__(manager)
        detokenizer.tokenizer = self.tokenizer
        detokenizer.vocab_size = len(self.tokenizer)
        detokenizer.decode_status = {}
        detokenizer.disable_tokenizer_batch_decode = False
        detokenizer.is_tool_call_parser_gpt_oss = False
        detokenizer.tool_close_token_ids = set()
        return detokenizer

    def _streamer(self) -> Any:
        return output_streamer._GenerationStreamAccumulator(
            return_logprob=False,
            return_hidden_states=False,
            return_routed_experts=False,
            return_indexer_topk=False,
            spec_algorithm=SimpleNamespace(is_none=lambda: True),
            disaggregation_mode=DisaggregationMode.NULL,
            default_stream_interval=1,
            default_force_stream_interval=output_streamer.DEFAULT_FORCE_STREAM_INTERVAL,
            get_cached_tokens_details=lambda req: None,
            is_request_level_customized_info_key=lambda key: False,
            current_weight_version=None,
        )


def _batch(output: Any) -> Any:
    return SimpleNamespace(
        rids=output.rids,
        decoded_texts=output.decoded_texts,
        decode_ids=output.decode_ids_list,
        read_offsets=output.read_offsets,
        finished_reasons=output.finished_reasons,
        no_stop_trim=output.no_stop_trim,
        skip_special_tokens=output.skip_special_tokens,
        spaces_between_special_tokens=output.spaces_between_special_tokens,
    )


def main() -> None:
    asked = json.load(sys.stdin)
    load_plugins()
    servers = {name: Pipeline(flags) for name, flags in asked["servers"].items()}
    answers = [servers[question["server"]].answer(question) for question in asked["questions"]]
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
