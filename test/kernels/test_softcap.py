"""The cap of a model's logits without Triton."""

from __future__ import annotations

import math

import pytest
import torch

from sglang_ddtree.platform.softcap import softcap_inplace_logits

CAP = 30.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_follows_the_formula_in_place(dtype: torch.dtype) -> None:
    logits = torch.linspace(-200, 200, 84).view(4, 21).to(dtype)
    expected = [CAP * math.tanh(x / CAP) for x in logits.flatten().tolist()]
    assert softcap_inplace_logits(logits, CAP) is logits
    rounding = {"rtol": 2e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(logits.flatten().float(), torch.tensor(expected), **rounding)


def test_leaves_the_columns_beside_a_view() -> None:
    """A padded vocabulary is cut off by a view with rows apart."""
    padded = torch.full((3, 8), 60.0)
    softcap_inplace_logits(padded[:, :5], CAP)
    assert (padded[:, 5:] == 60).all()
    torch.testing.assert_close(padded[:, :5], torch.full((3, 5), CAP * math.tanh(2.0)))
