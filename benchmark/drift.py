"""Do recurrent states drift over a long generation?

    scripts/run.sh python benchmark/drift.py --pair tiny-hybrid

A tree server writes long answers, thousands of times committing a state that it rebuilt from a
stash. The answers must equal plain decoding's, and the state that is left must be that of a fresh
prefill of the same tokens. Exits with 1 where a token differs, other than at a near tie of the
target (see ``common/equality.py``), or a state differs by more than ``--tolerance``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from common import plugins, state_probe
from common.arguments import parser
from common.equality import Reference, Verdict, references
from common.server import Server, tree_flags

from sglang_ddtree.drafter.table import table


@dataclass(frozen=True)
class Drift:
    """What a long answer left.

    Attributes:
        same: tokens equal to plain decoding's.
        steps: decode steps, each with a commit.
        tokens: tokens that the compared states have seen.
        error: largest difference of a layer's state from a fresh prefill's, over the largest
            element of the latter.
    """

    verdict: Verdict
    same: int
    steps: int
    tokens: int
    error: float


def parse_args() -> argparse.Namespace:
    made = parser(str(__doc__).splitlines()[0])
    made.set_defaults(pair="tiny-hybrid")
    made.add_argument("--prompts", type=int, default=4, help="held-out prompts")
    made.add_argument("--max-new-tokens", type=int, default=2000)
    made.add_argument("--budget", type=int, default=31)
    made.add_argument("--tolerance", type=float, default=1e-3)
    return made.parse_args()


def measure(server: Server, states: Path, reference: Reference) -> Drift:
    """Write one answer, then prefill what its last state has seen."""
    server.flush_cache()
    count = len(reference.tokens)
    answer = server.generate(reference.prompt, max_new_tokens=count, ignore_eos=True)
    verdict, same = reference.compare(answer["output_ids"])
    ids = [*server.tokenize(reference.prompt), *answer["output_ids"]]
    decoded = state_probe.latest(states, within=len(ids))
    server.flush_cache()
    body = {
        "input_ids": ids[: decoded.tokens],
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
    }
    server.post("/generate", body).raise_for_status()
    fresh = state_probe.latest(states, within=decoded.tokens)
    assert fresh.tokens == decoded.tokens, "the two states have seen different texts"
    layers = zip(decoded.states, fresh.states, strict=True)
    error = max(float((a - b).abs().max() / b.abs().max()) for a, b in layers)
    return Drift(verdict, same, answer["meta_info"]["spec_verify_ct"], fresh.tokens, error)


def main() -> int:
    args = parse_args()
    prompts = [record["prompt"] for record in args.pair.prompts(args.prompts)]
    with Server(args.pair.target) as server:
        found = references(server, prompts, args.max_new_tokens)
    with tempfile.TemporaryDirectory(prefix="ddtree-drift-") as name:
        folder = Path(name)
        states = folder / "states.pt"
        env = plugins.announce(folder / "plugins", "common.state_probe")
        env[state_probe.VARIABLE] = str(states)
        with Server(args.pair.target, tree_flags(args.pair, args.budget), env) as server:
            drifts = [measure(server, states, reference) for reference in found]
    rows = [
        [d.verdict.value, str(d.same), str(d.steps), str(d.tokens), f"{d.error:.1e}"]
        for d in drifts
    ]
    columns = ["answer", "tokens equal", "commits", "state after tokens", "state error"]
    print(table(columns, rows))
    good = all(d.verdict is not Verdict.DIFFERENT and d.error <= args.tolerance for d in drifts)
    print(f"{'NO DRIFT' if good else 'DRIFT'}: state error at most {args.tolerance:g}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
