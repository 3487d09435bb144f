"""The features of a request that trees do not serve yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.managers.schedule_batch import Req

# Fields of a request, and of its sampling parameters with the value that asks for nothing.
FIELDS = ("return_logprob", "return_hidden_states", "return_sampling_mask")
PROCESSOR = "custom_logit_processor"
ADAPTER = "lora_path"
PARAMETERS: Mapping[str, Any] = {
    "json_schema": None,
    "regex": None,
    "ebnf": None,
    "structural_tag": None,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_new_tokens": 0,
    "logit_bias": None,
}
# Served, but not beside seeds: SGLang's sampler asserts under need_min_p_sampling
# (srt/layers/sampler.py:831@0.5.23).
MIN_P = "min_p"


def of_request(obj: GenerateReqInput, deterministic: bool) -> list[str]:
    """SGLang's names of what a request, single or a batch, asks for and a tree does not apply.

    Args:
        obj: the request as an API has converted it.
        deterministic: whether the server runs with ``--enable-deterministic-inference``.
    """
    found = [name for name in (*FIELDS, PROCESSOR, ADAPTER) if _any(getattr(obj, name, None))]
    return found + of_sampling(each(obj.sampling_params), deterministic)


def of_sampling(params: Iterable[Mapping[str, Any]], deterministic: bool) -> list[str]:
    """The same for the sampling parameters of its prompts."""
    every = list(params)
    neutral = {**PARAMETERS, MIN_P: 0.0} if deterministic else PARAMETERS
    return [
        name
        for name, value in neutral.items()
        if any(params.get(name) not in (None, "", {}, value) for params in every)
    ]


def of_queued(req: Req, deterministic: bool) -> list[str]:
    """The same for a request that has reached the scheduler."""
    params = req.sampling_params
    found = [name for name in FIELDS if getattr(req, name)]
    found += [PROCESSOR] if req.custom_logit_processor is not None else []
    found += [ADAPTER] if req.lora_id is not None else []
    sampling = {name: getattr(params, name) for name in (*PARAMETERS, MIN_P)}
    return found + of_sampling([sampling], deterministic)


def _any(value: Any) -> bool:
    return any(map(bool, value)) if isinstance(value, list) else bool(value)


def each(params: Any) -> list[Mapping[str, Any]]:
    """The sampling parameters of each prompt, as a request carries them."""
    if params is None:
        return []
    return params if isinstance(params, list) else [params]
