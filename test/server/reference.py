"""The target model in transformers, float32: an oracle that shares no code with SGLang."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from common.pairs import Pair
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

# Below this difference of two logits, another order of summation may pick the other token.
NEAR_TIE = 1e-4


class ReferenceTarget:
    """A pair's target, loaded on first use."""

    def __init__(self, pair: Pair) -> None:
        self._folder = pair.target

    @cached_property
    def tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self._folder)

    @cached_property
    def _model(self) -> Any:
        return AutoModelForCausalLM.from_pretrained(self._folder, dtype=torch.float32).eval()

    def encode(self, text: str) -> list[int]:
        """The token ids of a prompt, as the server's tokenizer makes them."""
        return self.tokenizer.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    @torch.inference_mode()
    def logits(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """float32 [rows, length, V]: logits after every token of equally long rows."""
        return self._model(torch.tensor(rows)).logits

    def greedy_mismatch(self, prompt: Sequence[int], output: Sequence[int]) -> str | None:
        """Where ``output`` leaves the greedy path beyond a near tie, or None."""
        logits = self.logits([[*prompt, *output]])[0, len(prompt) - 1 : -1]
        best, token = logits.max(-1)
        for i, chosen in enumerate(output):
            if best[i] - logits[i, chosen] > NEAR_TIE:
                return f"token {i} is {chosen}, the reference's is {int(token[i])}"
        return None

    def is_near_tie(self, context: Sequence[int], one: int, other: int) -> bool:
        """Whether two next tokens are so close that rounding decides between them."""
        logits = self.logits([context])[0, -1]
        return bool((logits[one] - logits[other]).abs() < NEAR_TIE)
