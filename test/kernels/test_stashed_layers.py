"""The engine's recurrent layers: verify, commit and checkpoint a batch of trees in a pool."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.recurrent_pool import HIDDEN, SHAPE, Layer, Pool, layer_of_transformers
from sglang_ddtree.tree import Acceptance, DraftTree, accept
from unit.gdn_tree_cases import grown_tree, relative

recurrent = importlib.import_module("sglang_ddtree.engine.recurrent")
verify_hook = importlib.import_module("sglang_ddtree.engine.recurrent.verify_hook")

INTERVAL = 8
BUDGET = 20
WIDTH = BUDGET + 1


def normal(*size: int, seed: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)) * 3


class Server:
    """Two recurrent layers, a pool, and requests that grow by one accepted path a step.

    The text of a request is a list of hidden states, one a token; a node's hidden state depends on
    the step and the node only, so that siblings differ.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slots: list[int]) -> None:
        self.pool = Pool(layers=2, slots=9, size=4)
        self.layers = [Layer(layer_of_transformers(seed=i), 2 * i + 1) for i in range(2)]
        self.slots = slots
        params = SimpleNamespace(
            shape=SimpleNamespace(
                conv=[(SHAPE.channels, SHAPE.kernel_size - 1)],
                temporal=(SHAPE.v_heads, SHAPE.v_dim, SHAPE.k_dim),
            ),
            layers=[0, 1],
            mamba_cache_per_req=1000,
        )
        self.backend: Any = SimpleNamespace(
            req_to_token_pool=self.pool,
            forward_metadata=SimpleNamespace(
                mamba_cache_indices=torch.tensor(slots, dtype=torch.int32)
            ),
            _translate_mamba_indices=lambda slots: slots,
        )
        self.recurrent = recurrent.StashedLayers(self.backend, params, WIDTH, torch.float32)
        self.backend.tree_layers = self.recurrent
        context = importlib.import_module("sglang.srt.runtime_context")
        monkeypatch.setattr(context, "mamba_track_grid", lambda page_size: INTERVAL)
        self.texts = [normal(0, HIDDEN, seed=0) for _ in slots]

    def step(
        self, tree: DraftTree, leaves: list[int], seed: int, targets: list[int] | None
    ) -> None:
        """Verify ``tree`` and commit the paths to ``leaves``; ``targets`` receive checkpoints."""
        hidden = normal(len(self.slots), WIDTH, HIDDEN, seed=seed)
        self.recurrent.begin(SimpleNamespace(tree=tree))
        self.check_outputs(tree, hidden)
        accepted = accepted_at(tree, leaves)
        batch = SimpleNamespace(
            mamba_track_indices=None if targets is None else torch.tensor(targets),
            tree_cache=SimpleNamespace(page_size=1),
        )
        lens = torch.tensor([len(text) for text in self.texts])
        self.recurrent.commit(batch, accepted, lens)
        for row, nodes in enumerate(accepted.path.tolist()):
            kept = hidden[row, nodes[: int(accepted.length[row]) + 1]]
            self.texts[row] = torch.cat([self.texts[row], kept])

    def check_outputs(self, tree: DraftTree, hidden: Tensor) -> None:
        """A node's output is that of its own path as a plain text, by transformers."""
        mode = SimpleNamespace(is_target_verify=lambda: True)
        batch = SimpleNamespace(forward_mode=mode)
        ancestors = tree.ancestor_mask()
        for layer in self.layers:
            inputs = layer.inputs(hidden.flatten(0, 1))
            out = verify_hook.verify_tree(unreachable, self.backend, layer.radix, batch, *inputs)
            assert out.shape == (1, hidden.shape[0] * WIDTH, SHAPE.v_heads, SHAPE.v_dim)
            out = out[0].unflatten(0, (-1, WIDTH))
            for row, text in enumerate(self.texts):
                live = int(tree.num_nodes[row])
                for node in {live // 2, live - 1}:
                    path = torch.cat([text, hidden[row, ancestors[row, node]]])
                    expected = layer.expected(path)[-1]
                    assert relative(out[row, node], expected.double()) < 1e-4

    def check_state(self, slot: int, text: Tensor) -> None:
        """The state in ``slot`` is that of a plain text, by what transformers writes next."""
        following = normal(1, HIDDEN, seed=99)
        backend = importlib.import_module("sglang_ddtree.platform.gdn_backend")
        reader = object.__new__(backend.TorchGDNBackend)
        pool = Pool(layers=2, slots=2, size=1)
        pool.states[:, 1], pool.windows[:, 1] = (
            self.pool.states[:, slot],
            self.pool.windows[:, slot],
        )
        reader.req_to_token_pool = pool
        reader.forward_metadata = SimpleNamespace(mamba_cache_indices=torch.tensor([1]))
        batch = SimpleNamespace(mamba_track_mask=None)
        for layer in self.layers:
            (got,) = reader.forward_decode(layer.radix, batch, *layer.inputs(following))[0]
            expected = layer.expected(torch.cat([text, following]))[-1]
            assert relative(got, expected.double()) < 1e-4


def unreachable(*args: Any, **kwargs: Any) -> Tensor:
    raise AssertionError("a verify forward reached SGLang's own path")


def accepted_at(tree: DraftTree, leaves: list[int]) -> Acceptance:
    """What acceptance gives when the target agrees with the paths to ``leaves``."""
    target = torch.full_like(tree.tokens, -1)
    for row, leaf in enumerate(leaves):
        node = leaf
        while node > 0:
            up = int(tree.parent[row, node])
            target[row, up] = tree.tokens[row, node]
            node = up
    accepted = accept(tree, target)
    assert accepted.leaf.tolist() == leaves
    return accepted


def deepest(tree: DraftTree, row: int, rank: int) -> int:
    """The live node of a request with the ``rank``-th largest depth, counted around."""
    live = int(tree.num_nodes[row])
    order = tree.depth[row, :live].argsort(descending=True, stable=True)
    return int(order[rank % live])


@pytest.fixture
def server_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[int]], Server]:
    return lambda slots: Server(monkeypatch, slots)


def test_many_steps(server_of: Callable[[list[int]], Server]) -> None:
    """Requests grow by paths of any length, each from its own state, in slots of any order."""
    server = server_of([6, 1, 3])
    for step in range(12):
        tree = grown_tree(bs=3, budget=BUDGET, depths=7, seed=step)
        leaves = [deepest(tree, row, (3 * step + row) % WIDTH) for row in range(2)]
        server.step(tree, [*leaves, 0], seed=step, targets=None)
    assert len(server.texts[0]) > 24
    assert len(server.texts[2]) == 12
    for slot, text in zip(server.slots, server.texts, strict=True):
        server.check_state(slot, text)
    unused = [0, 2, 4, 5, 7, 8]
    assert not server.pool.states[:, unused].any()
    assert not server.pool.windows[:, unused].any()


def test_checkpoints(server_of: Callable[[list[int]], Server]) -> None:
    """A slot of the prefix cache gets the state at the last multiple of the interval."""
    server = server_of([6, 1])
    checked = [0, 0]
    for step in range(12):
        tree = grown_tree(bs=2, budget=BUDGET, depths=7, seed=step)
        leaves = [deepest(tree, row, (step + 5 * row) % 12) for row in range(2)]
        before = [len(text) for text in server.texts]
        server.step(tree, leaves, seed=step, targets=[4, 8])
        for row, slot in enumerate([4, 8]):
            boundary = len(server.texts[row]) // INTERVAL * INTERVAL
            if boundary > before[row]:
                checked[row] += 1
                server.check_state(slot, server.texts[row][:boundary])
            server.check_state(server.slots[row], server.texts[row])
    assert min(checked) >= 2


def test_requests_that_are_gone(server_of: Callable[[list[int]], Server]) -> None:
    """Neither a freed checkpoint slot nor padding is written to, but for slot 0."""
    server = server_of([2, -1])
    server.pool.states[:, 8] = 5.0
    tree = grown_tree(bs=2, budget=BUDGET, depths=7, seed=1)
    tree = DraftTree(*(x[:1].expand(2, *x.shape[1:]).clone() for x in vars(tree).values()))
    leaf = deepest(tree, 0, 0)
    server.texts = [normal(0, HIDDEN, seed=0)] * 2
    hidden = normal(2, WIDTH, HIDDEN, seed=3)
    server.recurrent.begin(SimpleNamespace(tree=tree))
    for layer in server.layers:
        server.recurrent.verify(layer.radix, *layer.inputs(hidden.flatten(0, 1)))
    batch = SimpleNamespace(
        mamba_track_indices=torch.tensor([-1, -1]), tree_cache=SimpleNamespace(page_size=1)
    )
    server.recurrent.commit(batch, accepted_at(tree, [leaf, leaf]), torch.tensor([4, 4]))
    assert server.pool.states[:, 2].any()
    assert (server.pool.states[:, 8] == 5.0).all()
    assert not server.pool.states[:, [1, 3, 4, 5, 6, 7]].any()
    assert torch.isfinite(server.pool.states).all()


def test_prefill_goes_past_the_hook() -> None:
    mode = SimpleNamespace(is_target_verify=lambda: False)
    batch, seen = SimpleNamespace(forward_mode=mode), []

    def original(*args: Any, **kwargs: Any) -> Tensor:
        seen.append((args, kwargs))
        return torch.zeros(1)

    backend = SimpleNamespace(tree_layers=object())
    verify_hook.verify_tree(
        original, backend, layer=1, forward_batch=batch, mixed_qkv=2, a=3, b=4, q=5
    )
    assert seen == [((backend, 1, batch, 2, 3, 4), {"q": 5})]
