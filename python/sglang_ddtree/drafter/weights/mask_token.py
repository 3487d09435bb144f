"""An unused token of the target, to stand for the positions that the drafter fills."""

from __future__ import annotations

import re
from typing import Any

from sglang_ddtree.drafter.errors import DrafterError

# Names that model makers give to tokens that no text contains, in order of preference.
_UNUSED = ("mask", "reserved", "unused", r"extra_?\d")
# Tokens of code repositories, which a chat model's texts do not contain.
_OF_REPOSITORIES = "empty_output|jupyter|gh_stars|issue_|repo_?name|file_sep|filename|fim_pad"


def choose_mask_token(tokenizer: Any, vocab: int, wanted: int | str | None = None) -> int:
    """Id of the mask token.

    Args:
        tokenizer: of transformers.
        vocab: rows of the target's embedding; those beyond the tokenizer are unused.
        wanted: an id or a token the user names; None to choose.

    Raises:
        DrafterError: the named one does not exist, or there is no unused token.
    """
    if wanted is not None:
        return _named(tokenizer, vocab, wanted)
    ends = {tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id}
    special = {
        token: index
        for token, index in tokenizer.get_vocab().items()
        if index < vocab and index not in ends and re.fullmatch(r"[<\[|].*[>\]|]", token)
    }
    for pattern in (*_UNUSED, None, _OF_REPOSITORIES):
        if pattern is None:
            if len(tokenizer) < vocab:
                return vocab - 1
            continue
        found = [i for token, i in special.items() if re.search(pattern, token, re.IGNORECASE)]
        if found:
            return max(found)
    raise DrafterError(
        "the target's tokenizer has no token that is plainly unused: name one that its texts "
        "never contain with --mask-token"
    )


def _named(tokenizer: Any, vocab: int, wanted: int | str) -> int:
    text = str(wanted)
    known = tokenizer.get_vocab()
    index = int(text) if text.isdigit() else known.get(text)
    if index is None:
        raise DrafterError(f"--mask-token: the tokenizer has no token {text!r}")
    if index >= vocab:
        raise DrafterError(f"--mask-token {index}: the target's vocabulary has {vocab} tokens")
    return index
