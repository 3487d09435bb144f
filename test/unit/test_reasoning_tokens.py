"""Reasoning tokens of answers that a step cut: what token by token decoding counts."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import itertools, json
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.runtime_context import get_context, get_spec
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang_ddtree.engine.hooks import reasoning_tokens

START, END, STOP = [7, 8], [9, 9], 3

def counted(answer, steps, limit, self_opened):
    params = SamplingParams(max_new_tokens=limit, stop_token_ids=[STOP])
    params.normalize(None)
    req = Req("x", "", [1, 2], params, vocab_size=100)
    for step in steps:
        tokens, answer = answer[:step], answer[step:]
        req.output_ids.extend(tokens)
        if self_opened:
            req.update_self_opened_reasoning_tokens(tokens, START, END)
        else:
            req.update_reasoning_tokens(tokens, END)
        req.update_finish_state(len(tokens))
        if req.finished():
            break
    assert req.finished()
    return req.reasoning_tokens, len(req.output_ids_through_stop)

reasoning_tokens.register()
HookRegistry.apply_hooks()
answers = [
    [5] * 40,
    [5] * 6 + [STOP] + [5] * 40,
    [5] * 6 + END + [5] * 5 + [STOP] + [5] * 40,
    START + [5] * 6 + END + [5] * 40,
    START + [5] * 40,
    [7, STOP] + [8] * 40,
]
cases = []
spec = {"speculative_algorithm": "DDTREE"}
with get_context().override_server_args(), get_spec().override(**spec):
    for answer, limit, own in itertools.product(answers, (1, 2, 5, 9, 20), (False, True)):
        got = [counted(answer, [1] + [width] * 40, limit, own) for width in (1, 4, 16, 30)]
        cases.append(got)
print(json.dumps(cases))
"""


def test_as_token_by_token() -> None:
    """The hook, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    cases = json.loads(done.stdout.splitlines()[-1])
    assert any(count not in (0, length) for (count, length), *_ in cases)
    for plain, *trees in cases:
        assert all(tree == plain for tree in trees), (plain, trees)
