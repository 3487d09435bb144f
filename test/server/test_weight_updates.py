"""New weights over HTTP: the target takes them; the drafter stays unless it is named."""

from __future__ import annotations

import base64
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from common.equality import accept_length
from common.server import Server
from safetensors.torch import load_file, save_file

from server.configurations import PAIR
from server.reference import ReferenceTarget

pytestmark = pytest.mark.parametrize("tree", ["square"], indirect=True)

DISK, TENSOR = "/update_weights_from_disk", "/update_weights_from_tensor"
LENGTH = 64


class Service:
    """A tree server, its answers to some prompts, and what it says of the drafter's weights."""

    def __init__(self, server: Server, prompts: list[str]) -> None:
        self.server = server
        self.prompts = prompts[:4]

    def answers(self) -> list[dict[str, Any]]:
        options = {"max_new_tokens": LENGTH, "ignore_eos": True}
        return self.server.generate_all(self.prompts, concurrency=4, **options)

    def drafter(self) -> dict[str, str]:
        (rank,) = self.post("/weights_checker", {"action": "checksum", "selector": "draft"})[
            "ranks"
        ]
        return rank["checksums"]

    def post(self, path: str, body: dict[str, Any], status: int = 200) -> Any:
        answer = self.server.post(path, body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def send(
        self, selector: str | None, tensors: dict[str, torch.Tensor], status: int = 200
    ) -> Any:
        """Tensors over HTTP, in a session of their own; SGLang's default where none is selected."""
        named = {} if selector is None else {"selector": selector}
        self.post("/begin_weight_update", named)
        payload = base64.b64encode(pickle.dumps(list(tensors.items()))).decode()
        answer = self.post(TENSOR, {"serialized_named_tensors": [payload], **named}, status)
        self.post("/end_weight_update", {})
        return answer


@pytest.fixture
def service(tree: Server, prompts: list[str]) -> Iterator[Service]:
    """Leaves the server with the weights that it was started with."""
    service = Service(tree, prompts)
    yield service
    service.post(DISK, {"model_path": str(PAIR.target)})
    service.send("draft", load_file(PAIR.drafter / "model.safetensors"))


def tokens(answers: list[dict[str, Any]]) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers]


def changed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return {
        name: tensor + 0.1 * tensor.std() * torch.randn(tensor.shape, generator=random)
        if tensor.dim() == 2
        else tensor
        for name, tensor in ((name, tensor.float()) for name, tensor in tensors.items())
    }


def target_with(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    shutil.copytree(PAIR.target, folder)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_the_same_weights_change_nothing(service: Service) -> None:
    before, drafter = service.answers(), service.drafter()
    assert accept_length(before) > 2
    service.post(DISK, {"model_path": str(PAIR.target)})
    for selector in (None, "all", "target"):
        service.send(selector, load_file(PAIR.target / "model.safetensors"))
    assert service.drafter() == drafter
    after = service.answers()
    assert tokens(after) == tokens(before)
    assert accept_length(after) == accept_length(before)


@pytest.mark.parametrize("way", ["disk", "tensors"])
def test_new_weights_of_the_target(service: Service, way: str, tmp_path: Path) -> None:
    """Against transformers with these weights."""
    before, drafter = tokens(service.answers()), service.drafter()
    weights = changed(load_file(PAIR.target / "model.safetensors"))
    folder = target_with(tmp_path / "changed", weights)
    if way == "disk":
        service.post(DISK, {"model_path": str(folder)})
    else:
        service.send(None, weights)
    reference = ReferenceTarget(cast("Any", SimpleNamespace(target=folder)))
    after = tokens(service.answers())
    assert after != before
    for text, output in zip(service.prompts, after, strict=True):
        assert reference.greedy_mismatch(reference.encode(text), output) is None
    assert service.drafter() == drafter


def test_new_weights_of_the_drafter(service: Service) -> None:
    before = service.answers()
    drafter = load_file(PAIR.drafter / "model.safetensors")
    service.send("draft", {name: torch.zeros_like(tensor) for name, tensor in drafter.items()})
    ruined = service.answers()
    assert tokens(ruined) == tokens(before)
    assert accept_length(ruined) < 1.3 < 2 < accept_length(before)
    service.send("draft", drafter)
    assert accept_length(service.answers()) == accept_length(before)


def test_weights_that_do_not_fit(service: Service, tmp_path: Path) -> None:
    """HTTP 400 that says what to do; the server answers as before."""
    before, drafter = service.answers(), service.drafter()
    weights = load_file(PAIR.target / "model.safetensors")
    half = {name: t[: len(t) // 2].contiguous() for name, t in changed(weights).items()}
    folder = target_with(tmp_path / "half", half)
    torn = target_with(tmp_path / "torn", changed(weights))
    with (torn / "model.safetensors").open("r+b") as file:
        file.truncate(file.seek(0, 2) // 2)
    empty = tmp_path / "empty"
    empty.mkdir()
    refusals = {
        "is a drafter": PAIR.drafter,
        "does not fit the served target": folder,
        "was loaded again": torn,
        "": empty,
    }
    for reason, path in refusals.items():
        assert reason in service.post(DISK, {"model_path": str(path)}, 400)["message"]
        after = service.answers()
        assert tokens(after) == tokens(before), path
        assert accept_length(after) == accept_length(before), path
    assert "do not fit the draft" in service.send("draft", half, 400)["message"]
    assert service.drafter() == drafter
    service.post("/begin_weight_update", {"selector": "draft"})
    message = service.post(TENSOR, {"serialized_named_tensors": ["gAROLg=="]}, 400)["message"]
    assert 'selector "target"' in message
    service.post("/end_weight_update", {})
    assert tokens(service.answers()) == tokens(before)
