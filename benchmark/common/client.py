"""SGLang's own serving benchmark as the client of our servers."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from common.pairs import Pair
from common.server import Server

DATASETS = ("custom", "random-ids")
SEED = 1


@dataclass(frozen=True)
class Workload:
    """The same requests for every server: greedy, EOS ignored, so that all do equal work.

    Attributes:
        dataset: ``custom``, the pair's held-out prompts, or ``random-ids``, SGLang's prompts of
            arbitrary tokens. Neither needs a download.
        requests: how many.
        input_len: tokens of a ``random-ids`` prompt.
        output_len: tokens of every answer.
    """

    pair: Pair
    dataset: str
    requests: int
    input_len: int
    output_len: int

    def prompts(self) -> list[str]:
        """The prompts that the client sends, in some order."""
        if self.dataset == "random-ids":
            return self._arbitrary_prompts()
        records = self.pair.prompts(self.requests)
        return [records[i % len(records)]["prompt"] for i in range(self.requests)]

    def _arbitrary_prompts(self) -> list[str]:
        """What the client makes of :data:`SEED`, by the function that it calls itself."""
        import numpy as np
        from sglang.benchmark.datasets.random import sample_random_requests
        from transformers import AutoTokenizer

        np.random.seed(SEED)
        rows = sample_random_requests(
            input_len=self.input_len,
            output_len=self.output_len,
            num_prompts=self.requests,
            range_ratio=1.0,
            tokenizer=AutoTokenizer.from_pretrained(self.pair.target),
            dataset_path="",
            random_sample=False,
        )
        return [row.prompt for row in rows]

    def flags(self, folder: Path) -> list[str]:
        """Arguments of ``sglang.benchmark.serving``; a ``custom`` data set goes to ``folder``."""
        if self.dataset == "random-ids":
            source = ["--random-range-ratio", "1.0", "--random-input-len", str(self.input_len)]
            source += ["--random-output-len", str(self.output_len)]
        else:
            path = folder / "prompts.jsonl"
            with path.open("w") as file:
                for prompt in self.prompts():
                    turns = [{"content": prompt}, {"content": ""}]
                    file.write(json.dumps({"conversations": turns}) + "\n")
            source = ["--dataset-path", str(path), "--sharegpt-output-len", str(self.output_len)]
        return ["--dataset-name", self.dataset, "--num-prompts", str(self.requests), *source]


@dataclass(frozen=True)
class Measurement:
    """One run of the client.

    Attributes:
        tokens_per_s: output tokens of all requests by the time of the whole run.
        tpot_ms: time per output token after the first, the median of requests.
        texts: what was answered, in the client's order.
    """

    tokens_per_s: float
    tpot_ms: float
    texts: list[str]


def measure(server: Server, workload: Workload, concurrency: int) -> Measurement:
    """Run ``python -m sglang.benchmark.serving`` with at most ``concurrency`` requests at a time.

    The client warms the server up, then empties its radix cache.

    Raises:
        RuntimeError: the client failed, or a request has fewer tokens than asked for.
    """
    with tempfile.TemporaryDirectory(prefix="serving-") as name:
        folder = Path(name)
        output = folder / "result.jsonl"
        command = [sys.executable, "-m", "sglang.benchmark.serving", "--backend", "sglang"]
        command += ["--base-url", server.url, *workload.flags(folder), "--seed", str(SEED)]
        command += ["--max-concurrency", str(concurrency), "--warmup-requests", str(concurrency)]
        command += ["--flush-cache", "--disable-tqdm", "--output-details"]
        command += ["--output-file", str(output)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0 or not output.exists():
            raise RuntimeError(
                f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}"
            )
        result = json.loads(output.read_text())
    if set(result["output_lens"]) != {workload.output_len}:
        raise RuntimeError(f"answers are short: {result['output_lens']}, {result['errors']}")
    return Measurement(
        tokens_per_s=result["output_throughput"],
        tpot_ms=result["median_tpot_ms"],
        texts=result["generated_texts"],
    )
