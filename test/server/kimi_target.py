"""A target of Kimi K2.5's class around the text model of another pair.

``KimiK25ForConditionalGeneration`` is a vision tower, a projector and DeepSeek-V3's language model.
A request without images never runs the first two, so its tokens are the language model's.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

# The published checkpoints bring code of their own for this, which SGLang loads in the same way.
PROCESSOR = """
from types import SimpleNamespace

from transformers import AutoTokenizer, ProcessorMixin


class Processor(ProcessorMixin):
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.image_processor = None
        self.media_processor = SimpleNamespace(
            media_proc_cfg={
                "patch_size": 14,
                "merge_kernel_size": 2,
                "in_patch_limit": 64,
                "patch_limit_on_one_side": 64,
                "image_mean": [0.5, 0.5, 0.5],
                "image_std": [0.5, 0.5, 0.5],
            }
        )

    @classmethod
    def from_pretrained(cls, folder, **options):
        return cls(AutoTokenizer.from_pretrained(folder))
"""
VISION = {
    "model_type": "kimi_k25",
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "hidden_size": 32,
    "vt_hidden_size": 32,
    "mm_hidden_size": 32,
    "intermediate_size": 64,
    "init_pos_emb_height": 8,
    "init_pos_emb_width": 8,
}
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def write_kimi_target(text_model: Path, folder: Path) -> Path:
    """A checkpoint in ``folder`` whose language model is that of ``text_model``."""
    folder.mkdir(parents=True)
    text = json.loads((text_model / "config.json").read_text())
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "dtype": text["dtype"],
        "text_config": text,
        "vision_config": {**VISION, "text_hidden_size": text["hidden_size"]},
        "media_placeholder_token_id": text["vocab_size"] - 1,
        "pad_token_id": text["pad_token_id"],
        "eos_token_id": text["eos_token_id"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(text_model / "model.safetensors")
    named = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    save_file(named, folder / "model.safetensors", {"format": "pt"})
    for name in TEXT_FILES:
        shutil.copy(text_model / name, folder / name)
    (folder / "processing_tiny.py").write_text(PROCESSOR)
    processor = {"auto_map": {"AutoProcessor": "processing_tiny.Processor"}}
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return folder
