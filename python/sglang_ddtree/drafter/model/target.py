"""What a drafter must know of its target: sizes, rope, tokens, and the weights of its two ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sglang_ddtree.drafter.errors import DrafterError
from sglang_ddtree.drafter.model.rope import target_rope
from sglang_ddtree.engine.startup.target_capture import UnknownArchitectureError, is_captured
from sglang_ddtree.errors import said_by


@dataclass(frozen=True)
class TargetFacts:
    """A target's sizes, from its config as SGLang reads it.

    Attributes:
        latent: MLA; then heads and head size are no guide for the drafter's own.
        rope_bases: bases the target rotates with; the drafter takes the first.
        rope_scaling: rope scaling of the target, None without one.
        captures: SGLang can return this architecture's hidden states after chosen layers.
    """

    path: str
    architecture: str
    hidden: int
    intermediate: int | None
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    latent: bool
    vocab: int
    norm_eps: float
    max_positions: int
    rope_bases: tuple[float, ...]
    rope_scaling: dict[str, Any] | None
    captures: bool


def read_target(path: str, trust_remote_code: bool = False) -> TargetFacts:
    """Facts of the target in a local folder or hub repository.

    Raises:
        DrafterError: there is no config, or SGLang does not know the architecture.
    """
    return facts_of(model_config(path, trust_remote_code))


def model_config(path: str, trust_remote_code: bool = False) -> Any:
    """SGLang's ``ModelConfig`` of a target."""
    from sglang_ddtree.drafter.upstream.models import ModelConfig

    folder = Path(path)
    if folder.is_absolute() and not folder.exists():
        raise DrafterError(f"there is no target {path}")
    with _reading(path):
        return ModelConfig(model_path=path, trust_remote_code=trust_remote_code)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Whatever a config that others wrote makes SGLang and transformers raise is one error."""
    try:
        yield
    except DrafterError:
        raise
    except UnknownArchitectureError as error:
        raise DrafterError(str(error)) from error
    except Exception as error:
        raise DrafterError(f"SGLang can't read the target {path}: {said_by(error)}") from error


def facts_of(config: Any) -> TargetFacts:
    """The facts that SGLang's ``ModelConfig`` holds.

    Raises:
        DrafterError: it lacks one, or SGLang does not know the architecture.
    """
    with _reading(config.model_path):
        return _facts_of(config)


def _facts_of(config: Any) -> TargetFacts:
    text = config.hf_text_config
    heads = int(text.num_attention_heads)
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    if base := getattr(text, "rope_theta", None):
        rope = {"rope_theta": base, **rope}
    bases, scaling = target_rope(rope)
    architecture = (config.hf_config.architectures or ["none named"])[0]
    return TargetFacts(
        path=str(config.model_path),
        architecture=architecture,
        hidden=int(config.hidden_size),
        intermediate=getattr(text, "intermediate_size", None),
        layers=int(config.num_hidden_layers),
        heads=heads,
        kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(text, "head_dim", None) or config.hidden_size // heads),
        latent=getattr(text, "kv_lora_rank", None) is not None,
        vocab=int(config.vocab_size),
        norm_eps=float(getattr(text, "rms_norm_eps", 1e-6)),
        max_positions=int(text.max_position_embeddings),
        rope_bases=bases,
        rope_scaling=scaling,
        captures=is_captured(config),
    )


def weight_files(folder: Path) -> Iterator[Path]:
    """The safetensors files of a checkpoint, in order."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise DrafterError(f"{folder} has no safetensors files")
    yield from files


def read_tensors(folder: Path, endings: tuple[str, ...]) -> dict[str, Tensor]:
    """Tensors whose names end with one of ``endings``, by the ending."""
    from safetensors import safe_open

    found: dict[str, Tensor] = {}
    for file in weight_files(folder):
        with safe_open(str(file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - safe_open is not a mapping
                for ending in endings:
                    if name == ending or name.endswith(f".{ending}"):
                        found[ending] = tensors.get_tensor(name)
    return found


def embedding_scale(path: str) -> float:
    """What a target multiplies its embeddings by: Gemma by the root of the hidden size.

    (srt/models/gemma4_causal.py@0.5.23)
    """
    config = json.loads((Path(path) / "config.json").read_text())
    text = config.get("text_config") or config
    gemma = str(text.get("model_type", "")).startswith("gemma")
    return float(text["hidden_size"]) ** 0.5 if gemma else 1.0


def read_ends(path: str) -> tuple[Tensor, Tensor]:
    """Embedding and output head of a target, both ``[vocab, hidden]``, in their stored dtype.

    They are one tensor where the head is tied.

    Raises:
        DrafterError: the target is no local folder, or lacks them.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise DrafterError(
            f"{path} is no local folder: download the target first (hf download {path} "
            "--local-dir FOLDER), training reads its embedding and head"
        )
    config = json.loads((folder / "config.json").read_text())
    ends = read_tensors(folder, ("embed_tokens.weight", "lm_head.weight"))
    if "embed_tokens.weight" not in ends:
        raise DrafterError(f"{folder} holds no embed_tokens.weight")
    embedding = ends["embed_tokens.weight"]
    if "lm_head.weight" in ends:
        return embedding, ends["lm_head.weight"]
    text = config.get("text_config") or config
    if not (config.get("tie_word_embeddings", True) and text.get("tie_word_embeddings", True)):
        raise DrafterError(f"{folder} holds no lm_head.weight, and its head is not tied")
    return embedding, embedding
