"""Trees through SGLang's own ``triton`` backend and its custom mask, as on a GPU.

The kernels run in Triton's interpreter, at about a second a step.
"""

from __future__ import annotations

import pytest
from common.server import Server

from server.oracle import Oracle

pytestmark = pytest.mark.parametrize("tree", ["masked"], indirect=True)


def test_greedy_equals_plain_decoding(tree: Server, oracle: Oracle, prompts: list[str]) -> None:
    assert "TritonAttnBackend with a custom mask" in tree.log()
    texts = prompts[:2]
    answers = tree.generate_all(texts, concurrency=2, max_new_tokens=16, ignore_eos=True)
    for text, answer in zip(texts, answers, strict=True):
        oracle.check_tokens(text, answer["output_ids"], oracle.tokens(text, 16))
        assert answer["meta_info"]["spec_verify_ct"] < 15, "no step accepted a draft"
