"""What start-up must know of a drafter, read from its config by SGLang."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_ddtree.engine.config_error import DDTreeConfigError
from sglang_ddtree.errors import said_by

if TYPE_CHECKING:
    from sglang.srt.speculative.dflash_utils import DFlashDraftConfig


@dataclass(frozen=True)
class DrafterFacts:
    """A drafter's checkpoint as its config describes it.

    Attributes:
        path: local folder, or a hub name.
        hidden_size, num_heads, num_kv_heads: of its layers.
        vocab_size: of the target it was trained for.
        dflash: SGLang's parsed DFlash settings.
    """

    path: str
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    dflash: DFlashDraftConfig

    @property
    def block_size(self) -> int:
        block_size = self.dflash.resolve_block_size(default=16)
        assert block_size is not None
        return block_size


def load_drafter(cfg: Any) -> DrafterFacts:
    """Read the drafter's config through SGLang's own loader.

    Raises:
        DDTreeConfigError: the config can't be found or is not a DFlash drafter's.
    """
    try:
        return _drafter_of(cfg)
    except Exception as error:  # of transformers, of huggingface_hub, and of what they parse
        raise DDTreeConfigError(
            f"SGLang can't read the config.json of the drafter {cfg.speculative_draft_model_path}: "
            f"{said_by(error)}"
        ) from error


def _drafter_of(cfg: Any) -> DrafterFacts:
    import json

    from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config
    from sglang.srt.utils.hf_transformers_utils import get_config

    hf_config = get_config(
        cfg.speculative_draft_model_path,
        trust_remote_code=cfg.trust_remote_code,
        revision=cfg.speculative_draft_model_revision,
        model_override_args=json.loads(cfg.json_model_override_args),
    )
    text = hf_config.get_text_config()
    return DrafterFacts(
        path=cfg.speculative_draft_model_path,
        hidden_size=text.hidden_size,
        num_heads=text.num_attention_heads,
        num_kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        vocab_size=text.vocab_size,
        dflash=parse_dflash_draft_config(draft_hf_config=hf_config),
    )
