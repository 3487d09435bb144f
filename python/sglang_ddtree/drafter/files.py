"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """A safetensors file, readable by all, replaced atomically.

    Raises:
        OSError: no room for it; what was there before is kept.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".partial")
    whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(whole, temporary, metadata={"format": "pt", **(metadata or {})})
    except SafetensorError as error:
        # Its I/O errors come as text: "... No space left on device (os error 28)".
        temporary.unlink(missing_ok=True)
        found = [n for n in (28, 122, 13, 30) if f"(os error {n})" in str(error)]
        if not found:
            raise
        raise OSError(found[0], os.strerror(found[0]), str(path)) from error
    temporary.chmod(0o644)
    os.replace(temporary, path)


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """One JSON line that is on the disk when this returns."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """Records of a JSONL file, without a last line that a kill cut off; the file is trimmed too."""
    if not path.exists():
        return []
    text = path.read_bytes()
    kept = text[: text.rfind(b"\n") + 1]
    if len(kept) < len(text):
        with path.open("r+b") as file:
            file.truncate(len(kept))
    return [json.loads(line) for line in kept.splitlines()]
