"""Tokenizer and token streams: byte-level BPE, the chat template, packed training arrays."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from . import documents
from .hub import PAIRS
from .recipe import Recipe

SPECIAL_TOKENS = (
    documents.END_OF_TEXT,
    documents.TURN_START,
    documents.TURN_END,
    documents.MASK,
)
END_OF_TEXT_ID, TURN_START_ID, TURN_END_ID, MASK_ID = range(len(SPECIAL_TOKENS))

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab: int) -> Tokenizer:
    """A byte-level BPE whose first four ids are the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def as_transformers(tokenizer: Tokenizer, max_positions: int) -> PreTrainedTokenizerFast:
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=documents.TURN_END,
        pad_token=documents.END_OF_TEXT,
        additional_special_tokens=[documents.TURN_START, documents.MASK],
        model_max_length=max_positions,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def encode(tokenizer: Tokenizer, texts: Iterable[str]) -> np.ndarray:
    """All texts, one after another, as one uint16 stream."""
    encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return np.concatenate([np.asarray(e.ids, dtype=np.uint16) for e in encodings])


def build_streams(recipe: Recipe, folder: Path) -> None:
    """Write ``tokenizer.json``, ``generated.npy`` and ``stdlib.npy``.

    The tokenizer is trained, or the teacher's where the recipe names one.
    """
    generated = [
        text for _, text in documents.generated_documents(recipe.seed, recipe.generated_documents)
    ]
    library = [t + documents.END_OF_TEXT for t in documents.stdlib_documents(held_out=False)]
    if recipe.teacher:
        tokenizer = Tokenizer.from_file(str(PAIRS / recipe.teacher / "target" / "tokenizer.json"))
    else:
        share = max(1, len(generated) // 6)
        sample = [t.replace(documents.END_OF_TEXT, "") for t in generated[:share] + library[::2]]
        tokenizer = train_tokenizer(sample, recipe.target.vocab)
    np.save(folder / "generated.npy", encode(tokenizer, generated))
    np.save(folder / "stdlib.npy", encode(tokenizer, library))
    tokenizer.save(str(folder / "tokenizer.json"))


def target_batch(
    streams: tuple[np.ndarray, np.ndarray], recipe: Recipe, step: int, sequences: int
) -> np.ndarray:
    """Token windows ``[sequences, sequence + 1]`` (int64) of ``step``: a function of the seed."""
    rng = np.random.default_rng([recipe.target_run.seed, step])
    windows = []
    for _ in range(sequences):
        stream = streams[int(rng.random() < recipe.stdlib_share)]
        start = int(rng.integers(0, len(stream) - recipe.sequence - 1))
        windows.append(stream[start : start + recipe.sequence + 1])
    return np.stack(windows).astype(np.int64)
