"""A run folder with a toy target and captured samples, and training on it as users start it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from sglang_ddtree.drafter.data.samples import Sample, file_of, mask_of, write_sample
from sglang_ddtree.drafter.files import append_line
from sglang_ddtree.drafter.model.config import from_json
from sglang_ddtree.drafter.model.target import TargetFacts
from sglang_ddtree.drafter.run_folder import RunFolder
from sglang_ddtree.drafter.weights.export import write_drafter
from sglang_ddtree.drafter.weights.initialise import Wishes, build_config, first_weights

VOCAB, HIDDEN, PROMPT = 40, 16, 6
FACTS = TargetFacts(
    path="",
    architecture="LlamaForCausalLM",
    hidden=HIDDEN,
    intermediate=24,
    layers=6,
    heads=4,
    kv_heads=2,
    head_dim=8,
    latent=False,
    vocab=VOCAB,
    norm_eps=1e-5,
    max_positions=128,
    rope_bases=(1e4,),
    rope_scaling=None,
    captures=True,
)
WISHES = Wishes(layers=2, block=4, target_layer_ids=(1, 3), sliding_window=8)
COMMAND = ["drafter", "train", "--steps", "60", "--batch", "4", "--anchors", "6", "--lr", "1e-2"]
COMMAND += ["--muon-lr", "0.02", "--warmup", "2", "--save-every", "20", "--log-every", "8"]


def randomise(module: torch.nn.Module, seed: int) -> None:
    """Weights that differ everywhere: norms about 1, matrices about 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if parameter.dim() == 1 else 0.3 * noise)


def cyclic_text(start: int, length: int) -> list[int]:
    """Tokens that follow each other by a fixed rule, which a drafter can learn."""
    ids = [start % VOCAB]
    while len(ids) < length:
        ids.append((ids[-1] * 3 + 1) % (VOCAB - 1))
    return ids


def make_run(folder: Path, texts: int = 12, wishes: Wishes = WISHES) -> RunFolder:
    """Target, initial drafter, answers and samples; states are embeddings seen through a matrix."""
    run, target = RunFolder(folder / "run"), folder / "target"
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(VOCAB, HIDDEN, generator=generator) / 4
    mix = torch.randn(HIDDEN, 2 * HIDDEN, generator=generator) / HIDDEN**0.5
    target.mkdir(parents=True)
    save_file({"model.embed_tokens.weight": table}, str(target / "model.safetensors"))
    (target / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": HIDDEN}))
    config = build_config(FACTS, wishes, VOCAB - 1, None)
    write_drafter(run.drafter, config, first_weights(from_json(config), 0), dtype=torch.float32)
    run.record("init", {"target": str(target)})
    for line in range(1, texts + 1):
        ids = cyclic_text(line, 20 + line % 5)
        answer = {"key": f"{line}/0", "line": line, "temperature": 0.0}
        answer |= {"prompt_ids": ids[:PROMPT], "output_ids": ids[PROMPT:], "finish_reason": "stop"}
        append_line(run.answers, answer)
        tokens = torch.tensor(ids)
        sample = Sample(tokens, mask_of(len(ids), PROMPT), table[tokens] @ mix)
        write_sample(file_of(run.shards, answer), sample)
    return run


def start(run: RunFolder, *extra: str, processes: int = 1) -> subprocess.Popen[str]:
    """``drafter train`` as a process of its own, under torchrun where there are several."""
    launcher = [sys.executable, "-m", "sglang_ddtree.cli"]
    if processes > 1:
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        launcher = [sys.executable, "-m", *torchrun, "-m", "sglang_ddtree.cli"]
    command = [*launcher, *COMMAND, "--work", str(run.path), *extra]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Its output, once it has ended well."""
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output[-4000:]
    return output


def difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Largest difference of two sets of weights, relative to each tensor's largest element."""
    assert ours.keys() == theirs.keys()
    return max(
        float((ours[name] - theirs[name]).abs().max() / ours[name].abs().max()) for name in ours
    )
