"""Verification and commit against SGLang's parent-indexed Triton kernels, interpreted."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sglang_ddtree.ops.gdn_tree import (
    RecurrentLayer,
    RecurrentShape,
    TreeRecurrenceMetadata,
    commit,
    verify,
)
from sglang_ddtree.tree import DraftTree
from unit.gdn_tree_cases import grown_tree, relative

LAYERS = {
    "gdn": (RecurrentShape(k_heads=1, v_heads=3, k_dim=16, v_dim=8), None),
    "kda": (RecurrentShape(k_heads=2, v_heads=2, k_dim=8, v_dim=8, channel_decay=True), None),
    "kda-safe-gate": (RecurrentShape(1, 1, 8, 16, channel_decay=True), -5.0),
}


def inputs_of(shape: RecurrentShape, lower_bound: float | None, tree: DraftTree) -> dict:
    generator = torch.Generator().manual_seed(2)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    a_width = shape.v_heads * (shape.k_dim if shape.channel_decay else 1)
    return {
        "parents": tree.parent[0].tolist(),
        "shape": shape,
        "lower_bound": lower_bound,
        "mixed_qkv": normal(1, tree.width, shape.channels),
        "a": normal(1, tree.width, a_width),
        "b": normal(1, tree.width, shape.v_heads),
        "state": normal(1, shape.v_heads, shape.v_dim, shape.k_dim),
        "window": normal(1, shape.channels, shape.kernel_size - 1),
        "conv_weights": normal(shape.channels, shape.kernel_size),
        "bias": normal(shape.channels),
        "A_log": normal(shape.v_heads),
        "dt_bias": normal(a_width) - 2,
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[DraftTree, dict, dict]]:
    """One program for all layers: importing the kernels takes longer than running them."""
    for package in ("sglang", "triton"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    tree = grown_tree(bs=1, budget=20, depths=6)
    inputs = [inputs_of(*layer, tree) for layer in LAYERS.values()]
    folder = tmp_path_factory.mktemp("upstream")
    torch.save(inputs, folder / "inputs")
    program = Path(__file__).with_name("upstream_gdn.py")
    subprocess.run(
        [sys.executable, str(program), str(folder / "inputs"), str(folder / "outputs")],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        timeout=300,
    )
    outputs = torch.load(folder / "outputs")
    return {name: (tree, *pair) for name, *pair in zip(LAYERS, inputs, outputs, strict=True)}


@pytest.mark.parametrize("name", LAYERS)
def test_equals_the_kernels_of_sglang(
    name: str, results: dict[str, tuple[DraftTree, dict, dict]]
) -> None:
    tree, inputs, expected = results[name]
    assert tree.width == int(tree.num_nodes[0])
    layer = RecurrentLayer(
        inputs["shape"],
        inputs["conv_weights"],
        inputs["bias"],
        "silu",
        inputs["A_log"],
        inputs["dt_bias"],
        inputs["lower_bound"],
    )
    metadata = TreeRecurrenceMetadata.of(tree, 4)
    state, window = inputs["state"], inputs["window"]
    out, stash = verify(
        layer, inputs["mixed_qkv"], inputs["a"], inputs["b"], state, window, metadata
    )
    assert relative(out, expected["out"].double()) < 1e-5
    for node in range(tree.width):
        new = commit(stash, state, window, metadata, torch.tensor([node]))
        assert relative(new[0][0], expected["states"][node].double()) < 1e-5
        assert torch.equal(new[1][0], expected["windows"][node])
