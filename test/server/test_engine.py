"""The Python API: ``sglang.Engine`` takes no plugin flags; its own fields describe the tree."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from server.configurations import COMMON, PAIR
from server.oracle import Oracle

LENGTH = 40
SCRIPT = """
import json, sys
import sglang

if __name__ == "__main__":
    target, drafter, context_length, length, *prompts = sys.argv[1:]
    engine = sglang.Engine(
        model_path=target,
        speculative_algorithm="DDTREE",
        speculative_draft_model_path=drafter,
        speculative_num_draft_tokens=32,
        speculative_eagle_topk=4,
        dtype="float32",
        context_length=int(context_length),
        max_total_tokens=8192,
        log_level="error",
    )
    params = {"temperature": 0, "max_new_tokens": int(length), "ignore_eos": True}
    answers = engine.generate(prompts, params)
    print(json.dumps({"answers": answers, "info": engine.get_server_info()}, default=str))
    engine.shutdown()
"""


def test_engine_decodes_with_a_tree(oracle: Oracle, prompts: list[str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    context_length = COMMON[COMMON.index("--context-length") + 1]
    arguments = [str(PAIR.target), str(PAIR.drafter), context_length, str(LENGTH), *prompts[:3]]
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["info"]["speculative_num_draft_tokens"] == 32
    for prompt, answer in zip(prompts[:3], report["answers"], strict=True):
        assert answer["meta_info"]["spec_accept_length"] > 1.5
        expected = oracle.tokens(prompt, LENGTH)
        oracle.check_tokens(prompt, answer["output_ids"], expected)
