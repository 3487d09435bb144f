"""Does the choice of experts depend on what else is in a batch?

Verifying a tree puts a token among other rows than decoding does, and a matrix product may round a
row differently in another shape. In float32 that must not change which experts a token is given.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from common.pairs import Pair

# Rows of decoding, of chains and trees, and of a prefill.
BATCHES = (1, 8, 16, 32, 64, 128, 1024)


@dataclass
class Routing:
    """Choices of experts, compared between batch shapes.

    Attributes:
        tokens: rows routed, over all layers with experts.
        layers: with experts.
        differing: rows whose experts are not those they get alone.
        rounding: largest difference of a score between batch shapes.
        margin: smallest difference between the last chosen and the best passed-over expert of the
            chosen groups.
    """

    tokens: int = 0
    layers: int = 0
    differing: int = 0
    rounding: float = 0.0
    margin: float = float("inf")

    def __str__(self) -> str:
        batches = ", ".join(map(str, BATCHES[1:]))
        return (
            f"routing: {self.tokens} tokens in {self.layers} layers, alone and in batches of "
            f"{batches}: {self.differing} choices of experts differ; scores differ by at most "
            f"{self.rounding:.1e}, the next expert is {self.margin:.1e} away at its nearest"
        )


def has_experts(pair: Pair) -> bool:
    """Whether the target routes by groups and a correction bias, as DeepSeek-V3 does."""
    config = json.loads((pair.target / "config.json").read_text())
    return config.get("topk_method") == "noaux_tc"


@torch.inference_mode()
def check_routing(pair: Pair, prompts: Sequence[str]) -> Routing:
    """Route the target's own hidden states, row by row and in batches, as SGLang does on a CPU."""
    model = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(pair.target)
    gates = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]
    inputs: dict[int, list[Tensor]] = {index: [] for index in range(len(gates))}
    for index, gate in enumerate(gates):
        gate.register_forward_pre_hook(
            lambda _, args, index=index: inputs[index].append(args[0].flatten(0, -2))
        )
    for prompt in prompts:
        model(torch.tensor([tokenizer.encode(prompt)]))
    found = Routing(layers=len(gates))
    for index, gate in enumerate(gates):
        _compare(torch.cat(inputs[index]), gate, model.config, found)
    return found


def _compare(rows: Tensor, gate: torch.nn.Module, config: object, found: Routing) -> None:
    alone = F.linear(rows.unsqueeze(1), gate.weight).squeeze(1)
    chosen, margin = _choose(rows, alone, gate.e_score_correction_bias, config)
    found.tokens += len(rows)
    found.margin = min(found.margin, margin)
    for batch in BATCHES:
        logits = torch.cat([F.linear(part, gate.weight) for part in rows.split(batch)])
        others, _ = _choose(rows, logits, gate.e_score_correction_bias, config)
        found.differing += int((chosen != others).any(dim=1).sum())
        found.rounding = max(
            found.rounding, float((logits.sigmoid() - alone.sigmoid()).abs().max())
        )


def _choose(rows: Tensor, logits: Tensor, bias: Tensor, config: object) -> tuple[Tensor, float]:
    """Sorted ids of the chosen experts, and the smallest margin of a choice inside its groups."""
    from sglang.srt.layers.moe.topk import biased_grouped_topk_impl

    _, ids = biased_grouped_topk_impl(
        rows,
        logits,
        bias,
        topk=config.num_experts_per_tok,
        renormalize=True,
        num_expert_group=config.n_group,
        topk_group=config.topk_group,
    )
    scores = logits.sigmoid() + bias
    groups = scores.unflatten(1, (config.n_group, -1))
    best = groups.topk(2, dim=-1).values.sum(-1).topk(config.topk_group, dim=-1).indices
    inside = torch.zeros_like(groups, dtype=torch.bool)
    inside.scatter_(1, best[..., None].expand(-1, -1, groups.shape[-1]), True)
    ranked = scores.masked_fill(~inside.flatten(1), float("-inf")).sort(descending=True).values
    margins = ranked[:, config.num_experts_per_tok - 1] - ranked[:, config.num_experts_per_tok]
    return ids.sort(dim=1).values, float(margins.min())
