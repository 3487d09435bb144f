"""Configs of targets that can't be read: one error in words, whatever SGLang raised."""

from __future__ import annotations

import json
from typing import Any

import pytest
from common.pairs import Pair

from server.asking import answers_of

pytestmark = pytest.mark.no_server

UNREADABLE: dict[str, tuple[dict[str, Any], str]] = {
    "layers of their own sizes": (
        {"per_layer_config": {"0": {"head_dim": 32}}},
        "'head_dim' is a per-layer attribute and may vary across layers",
    ),
    "no pattern of windows": (
        {"architectures": ["MiMoV2FlashForCausalLM"]},
        "if hybrid_layer_pattern[i] == 1",
    ),
    "no number": ({"num_attention_heads": "many"}, "'num_attention_heads' expected int, got str"),
    "no model": ({"architectures": ["NoSuchForCausalLM"]}, "SGLang has no model class for NoSuch"),
}
ASK = """
import json, sys
from sglang_ddtree.drafter.errors import DrafterError
from sglang_ddtree.drafter.model.target import read_target

def said(folder):
    try:
        return f"read: {read_target(folder)}"
    except DrafterError as error:
        return str(error)

print(json.dumps({name: said(folder) for name, folder in json.load(sys.stdin).items()}))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    given = json.loads((Pair("tiny-dense").target / "config.json").read_text())
    folders = {}
    for name, (changes, _) in UNREADABLE.items():
        folder = tmp_path_factory.mktemp("target")
        (folder / "config.json").write_text(json.dumps({**given, **changes}))
        folders[name] = str(folder)
    return answers_of(ASK, folders)


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_config_that_can_not_be_read_is_one_error(answers: dict[str, str], name: str) -> None:
    assert UNREADABLE[name][1] in answers[name]
