"""Linear layers over a few rows on the CPU platform: the same numbers, the other way round."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

thin_linear = importlib.import_module("sglang_ddtree.platform.thin_linear")

LARGE, SMALL = (1024, 512), (512, 512)


@pytest.fixture(autouse=True, params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """As many as torch says it uses."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: request.param)
    return request.param


def operands(rows: int, shape: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(shape, generator=generator)
    return torch.randn(rows, shape[1], generator=generator), weight


def refuse(*_: object, **__: object) -> torch.Tensor:
    pytest.fail("left to SGLang")


@pytest.mark.parametrize("rows", [2, 8, 16])
@pytest.mark.parametrize("biased", [False, True])
def test_a_few_rows_times_a_large_weight(rows: int, biased: bool) -> None:
    x, weight = operands(rows, LARGE)
    bias = torch.randn(len(weight)) if biased else None
    layer = SimpleNamespace(weight=weight)
    out = thin_linear.apply_linear(refuse, None, layer, x, bias)
    assert out.is_contiguous()
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-3)


def test_more_rows_are_a_few_for_more_threads(threads: int) -> None:
    assert thin_linear.is_thin(*operands(17, LARGE)) == (threads > 1)


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        operands(1, LARGE),
        operands(129, LARGE),
        operands(8, SMALL),
        tuple(part.bfloat16() for part in operands(8, LARGE)),
        (operands(8, LARGE)[0][None], operands(8, LARGE)[1]),
    ],
    ids=["one row", "many rows", "small weight", "bfloat16", "three dimensions"],
)
def test_everything_else_is_left_to_sglang(x: torch.Tensor, weight: torch.Tensor) -> None:
    layer, seen = SimpleNamespace(weight=weight), []

    def apply(*arguments: object) -> torch.Tensor:
        seen.append(arguments)
        return x

    assert thin_linear.apply_linear(apply, "method", layer, x, None) is x
    assert seen == [("method", layer, x, None)]


def test_the_head_of_a_vocabulary() -> None:
    embedding = importlib.import_module("sglang.srt.layers.vocab_parallel_embedding")
    x, weight = operands(8, LARGE)
    head = SimpleNamespace(weight=weight, quant_method=embedding.UnquantizedEmbeddingMethod())
    logits = thin_linear.compute_head(refuse, None, x, head, None, out=None)
    torch.testing.assert_close(logits, x @ weight.T, rtol=1e-4, atol=1e-3)
    adapted = SimpleNamespace(**vars(head), set_lora=None)
    quantised = SimpleNamespace(weight=weight, quant_method=object())
    for other in (adapted, quantised):
        assert thin_linear.compute_head(lambda *_, **__: x, None, x, other, out=None) is x
