"""SGLang's readers of models: configs, rope, tokenizers, the layers that DFLASH captures.

Importing this takes as long as importing SGLang does, so its users import it where they need it.
"""

from __future__ import annotations

from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.layers.rotary_embedding import get_rope
from sglang.srt.speculative.dflash_utils import build_target_layer_ids
from sglang.srt.utils.hf_transformers_utils import get_tokenizer

__all__ = ["ModelConfig", "build_target_layer_ids", "get_rope", "get_tokenizer"]
