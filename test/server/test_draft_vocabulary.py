"""A drafter that may propose some tokens only: the target still writes all of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from common.equality import accept_length
from common.server import Server, tree_flags
from safetensors.torch import load_file, save_file

from server.configurations import COMMON, PAIR, STRICT
from server.oracle import Oracle

LENGTH = 64


def write_drafter(folder: Path, vocabulary: torch.Tensor) -> Path:
    """The pair's drafter with a draft vocabulary, as ``sglang-ddtree drafter export`` writes it."""
    shutil.copytree(PAIR.drafter, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["draft_token_ids"] = vocabulary
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_tokens_outside_are_verified_all_the_same(
    oracle: Oracle, prompts: list[str], tmp_path: Path
) -> None:
    texts = prompts[:6]
    expected = [oracle.tokens(text, LENGTH) for text in texts]
    written = torch.tensor(sorted({token for tokens in expected for token in tokens}))
    assert len(written) > 32
    flags = tree_flags(PAIR, 31)
    flags[flags.index(str(PAIR.drafter))] = str(
        write_drafter(tmp_path / "half", written[::2].contiguous())
    )
    with Server(PAIR.target, (*COMMON, *flags), STRICT) as server:
        answers = server.generate_all(texts, concurrency=3, max_new_tokens=LENGTH, ignore_eos=True)
    for text, answer, tokens in zip(texts, answers, expected, strict=True):
        oracle.check_tokens(text, answer["output_ids"], tokens)
    # Half of the tokens end a path wherever they come: fewer are accepted, but some are.
    assert 1.1 < accept_length(answers) < 4
