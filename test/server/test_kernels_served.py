"""Trees grown, verified, accepted and committed by this project's kernels, as on a GPU.

The Triton kernels run in Triton's interpreter, at about a second a step, so answers are short; the
oracle is the target in transformers. They are selected through the table that a GPU would use.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from common import plugins
from common.pairs import Pair
from common.server import Server, tree_flags

from server import kernel_probe
from server.configurations import COMMON, STRICT
from server.reference import ReferenceTarget

LENGTH = 16
BUDGET = 20  # more than the drafter's block, so that there are branches
# SGLang's warm-up would take longer than what is tested.
KERNELS = ("--decode-attention-backend", "ddtree", "--skip-server-warmup")
EVERYWHERE = {"tree, grow", "tree, accept", "KV rows, commit"}
GQA, MLA = "tree attention, GQA", "tree attention, MLA"
RECURRENT = {"gated delta, verify", "gated delta, commit"}


@dataclass(frozen=True)
class Case:
    """A pair, the flags of its server, the operations that have kernels, and launches a step."""

    pair: str
    flags: tuple[str, ...]
    operations: set[str]
    per_step: dict[str, int]

    @property
    def launches(self) -> set[str]:
        return {*self.per_step, "grow", "accept", "move"}


@dataclass(frozen=True)
class Served:
    case: Case
    server: Server
    counts: Path
    reference: ReferenceTarget

    def launches(self) -> Counter[str]:
        return kernel_probe.launches(self.counts)


CASES = (
    Case("tiny-dense", (), {GQA}, {"gqa": 4}),
    # States of the prefix cache come from decoding, too.
    Case(
        "tiny-hybrid",
        ("--page-size", "16", "--mamba-track-interval", "64"),
        {GQA, *RECURRENT},
        {"gqa": 1, "verify": 3},
    ),
    Case("tiny-mla", ("--page-size", "16"), {MLA}, {"mla": 4}),
    Case("tiny-swa", ("--page-size", "16"), {GQA}, {"gqa": 4}),
)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.pair)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    case: Case = request.param
    pair = Pair(case.pair)
    counts = tmp_path_factory.mktemp("launches")
    env = {
        **STRICT,
        "TRITON_INTERPRET": "1",
        **kernel_probe.env(counts),
        **plugins.announce(tmp_path_factory.mktemp("plugins"), "server.kernel_probe"),
    }
    with Server(
        pair.target, (*COMMON, *tree_flags(pair, BUDGET), *KERNELS, *case.flags), env
    ) as server:
        yield Served(case, server, counts, ReferenceTarget(pair))
        assert server.is_alive(), server.log()[-6000:]


def test_the_table_chose_the_kernels(served: Served) -> None:
    """What start-up printed; the backends are those that the user has and gave."""
    log = served.server.log()
    assert "trees verified by DDTreeAttnBackend\n" in log
    chosen = dict(re.findall(r"^(\w[\w ]+, \w+): (\w+)", log, re.MULTILINE))
    assert chosen == dict.fromkeys({*served.case.operations, *EVERYWHERE}, "triton")
    info = served.server.info()
    assert info["decode_attention_backend"] == "ddtree"
    assert info["prefill_attention_backend"] == "torch_tree"
    assert info["speculative_draft_attention_backend"] == "torch_tree"


def test_greedy_equals_the_reference(served: Served) -> None:
    """Cold and from a warm prefix, alone and together; and the kernels are what ran."""
    texts = [record["prompt"] for record in Pair(served.case.pair).prompts(4)][:2]
    before = served.launches()
    first = served.server.generate(texts[0], max_new_tokens=LENGTH, ignore_eos=True)
    steps = first["meta_info"]["spec_verify_ct"]
    ran = served.launches() - before
    for name, layers in served.case.per_step.items():
        assert ran[name] == layers * steps, ran
    assert ran["grow"] == ran["accept"] == steps
    assert all(ran[name] >= steps for name in served.case.launches), ran
    assert steps < LENGTH - 2, "no step accepted a draft"

    both = served.server.generate_all(texts, concurrency=2, max_new_tokens=LENGTH, ignore_eos=True)
    for text, answer in zip([texts[0], *texts], [first, *both], strict=True):
        ids = served.reference.encode(text)
        mismatch = served.reference.greedy_mismatch(ids, answer["output_ids"])
        assert mismatch is None, f"{mismatch}, after {text!r}"
