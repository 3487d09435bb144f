"""The finished run of smollm2.sh as a pair of the package: drafter, prompts, figures.

    python scripts/make_pair/ship_smollm2.py WORK

The target is not copied: it is fetched from the package index where it is served.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from sglang_ddtree.drafter.run_folder import RunFolder

PAIR = Path(__file__).resolve().parents[2] / "pairs" / "smollm2"
WEIGHT_LIMIT = 24 * 10**6


def held_out(file: Path, target: Path) -> list[dict[str, Any]]:
    """The held-out chats, as the benchmarks read them (``common/pairs.py``)."""
    tokenizer = AutoTokenizer.from_pretrained(target)
    chats = [json.loads(line)["messages"] for line in file.read_text().splitlines()]
    return [
        {
            "id": f"chat-{number:02}",
            "kind": "chat",
            "prompt": tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            ),
            "messages": messages,
        }
        for number, messages in enumerate(chats)
    ]


def main(work: Path) -> None:
    run = RunFolder(work / "run")
    weights = run.exported / "model.safetensors"
    if weights.stat().st_size > WEIGHT_LIMIT:
        raise SystemExit(f"{weights} is larger than {WEIGHT_LIMIT} bytes")
    shutil.copytree(run.exported, PAIR / "drafter", dirs_exist_ok=True)
    records = held_out(work / "prompts" / "held-out.jsonl", work / "target")
    (PAIR / "prompts.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    shutil.copy(run.training / "drafter.jsonl", PAIR / "training.jsonl")
    shutil.copy(run.path / "eval" / "results.json", PAIR / "evaluation.json")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
