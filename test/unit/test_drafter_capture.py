"""Captured rows on their way: collected over chunks, written once, and what goes wrong with it."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sglang_ddtree.drafter.data.capture import capture, check_room, size_bytes, usable
from sglang_ddtree.drafter.data.samples import Likeliest, file_of, read_sample, sample_files
from sglang_ddtree.drafter.errors import DrafterError
from sglang_ddtree.drafter.upstream.capture_hook import NAME, Spool


def request(rid: str) -> Any:
    return SimpleNamespace(rid=rid, hidden_states=[])


def test_chunks_become_one_tensor(tmp_path: Path) -> None:
    spool, one, two = Spool(tmp_path, writes=True), request("one"), request("two")
    rows = torch.randn(7, 4)
    spool.add(one, rows[:3], last=False)
    spool.add(two, rows[:2], last=True)
    assert not (tmp_path / "one.safetensors").exists()
    spool.add(one, rows[3:], last=True)
    assert torch.equal(load_file(tmp_path / "one.safetensors")[NAME], rows)
    assert torch.equal(load_file(tmp_path / "two.safetensors")[NAME], rows[:2])
    assert not spool.chunks
    assert not one.hidden_states


def test_a_failure_to_write_travels_in_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sglang_ddtree.drafter.files.write_tensors", full)
    spool, one = Spool(tmp_path, writes=True), request("one")
    spool.add(one, torch.randn(2, 4), last=True)
    assert one.hidden_states == [[errno.ENOSPC]]
    assert not spool.chunks


def answer(line: int, prompt: int, output: int) -> dict[str, Any]:
    ids = list(range(prompt + output))
    return {
        "line": line,
        "temperature": 0.7,
        "prompt_ids": ids[:prompt],
        "output_ids": ids[prompt:],
    }


class FakeEngine:
    """Rows that name their token."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def capture(
        self, sequences: list[list[int]], starts: list[int]
    ) -> list[tuple[torch.Tensor, Likeliest]]:
        self.asked += [len(ids) for ids in sequences]
        return [
            (torch.tensor(ids, dtype=torch.float32)[:, None].repeat(1, 6), self.likeliest(ids))
            for ids in sequences
        ]

    def likeliest(self, ids: list[int]) -> Likeliest:
        tokens = torch.tensor(ids, dtype=torch.int32)[:, None].repeat(1, 2)
        return Likeliest(tokens, torch.full((len(ids), 2), 0.25, dtype=torch.bfloat16))


def test_samples_are_cut_masked_and_not_captured_twice(tmp_path: Path) -> None:
    answers = [answer(1, 3, 4), answer(2, 3, 1), answer(3, 9, 5), answer(1004, 2, 9)]
    kept = usable(answers, max_length=10)
    assert [a["line"] for a in kept] == [1, 1004], "at least two tokens of the target's"
    engine: Any = FakeEngine()
    settings = {"max_length": 10, "dtype": torch.bfloat16, "batch": 3}
    assert capture(kept[:1], engine, tmp_path, **settings) == 1
    assert capture(kept, engine, tmp_path, **settings) == 1
    assert engine.asked == [7, 10]
    files = sample_files(tmp_path)
    assert files == [file_of(tmp_path, a) for a in kept]
    sample = read_sample(files[1])
    assert sample.input_ids.tolist() == list(range(10))
    assert sample.loss_mask.tolist() == [False] * 2 + [True] * 8
    assert sample.hidden_states.dtype == torch.bfloat16
    assert sample.hidden_states[5, 0] == 5
    assert sample.likeliest is not None
    assert sample.likeliest.tokens[5].tolist() == [5, 5]
    assert sample.likeliest.probs.dtype == torch.bfloat16


def test_size_is_known_before(tmp_path: Path) -> None:
    answers = [answer(1, 3, 4), answer(2, 5, 20)]
    needed = size_bytes(answers, 10, width=6, element_bytes=2)
    assert needed == (7 + 10) * (6 * 2 + 9)
    assert size_bytes(answers, 10, width=6, element_bytes=2, top=4) == needed + 17 * 4 * (4 + 2)
    assert "GB of hidden states to write" in check_room(tmp_path, needed)
    with pytest.raises(DrafterError, match="capture fewer answers"):
        check_room(tmp_path, 10**18)
