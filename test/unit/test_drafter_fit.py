"""``drafter fit``: the first layer's least squares, where its heads look, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from sglang_ddtree.drafter.data.samples import Sample
from sglang_ddtree.drafter.errors import DrafterError
from sglang_ddtree.drafter.model.config import DrafterConfig
from sglang_ddtree.drafter.model.layers import Layer, LayerList, RMSNorm, Shape, rope_table
from sglang_ddtree.drafter.model.model import Drafter
from sglang_ddtree.drafter.objective.objective import Ends, block_inputs
from sglang_ddtree.drafter.training.fit import Moments, fit, reduced_rank, tail_of
from unit.drafter_runs import FACTS, randomise

PAIR = Path(__file__).resolve().parents[2] / "pairs" / "tiny-dense"
VOCAB, HIDDEN, LAYERS = 60, 96, 5
SHAPE = Shape(
    hidden=HIDDEN,
    intermediate=128,
    layers=2,
    heads=6,
    kv_heads=2,
    head_dim=32,
    vocab=VOCAB,
    rope_theta=1e4,
    norm_eps=1e-5,
    max_positions=256,
)
CONFIG = DrafterConfig(SHAPE, 4, (1, 3), VOCAB - 1, (None, None))


class Target:
    """A toy target of the drafter's shape, in a folder, and texts with its states."""

    def __init__(self, folder: Path, norms: bool = False) -> None:
        self.facts = dataclasses.replace(
            FACTS, path=str(folder), hidden=HIDDEN, layers=LAYERS, heads=6, kv_heads=2, head_dim=32
        )
        self.layers = LayerList(dataclasses.replace(SHAPE, layers=LAYERS))
        self.norm = RMSNorm(HIDDEN, SHAPE.norm_eps)
        randomise(self.layers, 1)
        randomise(self.norm, 2)
        generator = torch.Generator().manual_seed(3)
        self.embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
        self.ends = Ends(self.embedding, self.embedding)
        weights = {f"model.layers.{n}": w for n, w in self.layers.state_dict().items()}
        if not norms:
            weights = {n: w for n, w in weights.items() if "q_norm" not in n and "k_norm" not in n}
        weights["model.norm.weight"] = self.norm.weight.detach()
        folder.mkdir(exist_ok=True)
        save_file(weights, str(folder / "model.safetensors"))
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))

    @torch.no_grad()
    def sample(self, seed: int, length: int = 64) -> Sample:
        ids = torch.randint(VOCAB - 1, (length,), generator=torch.Generator().manual_seed(seed))
        x, states = self.embedding[ids], []
        cos, sin = rope_table(SHAPE, length)
        for layer in self.layers:
            normed = layer.input_layernorm(x)
            attention = layer.self_attn
            queries = attention.queries(normed, cos, sin)[None]
            keys, values = (t[None] for t in attention.keys_values(normed, cos, sin))
            x = layer.feed_forward(
                x + attention.output(attention.mix(queries, keys, values, None))[0]
            )
            states.append(x)
        features = torch.cat([states[i] for i in CONFIG.target_layer_ids], -1)
        return Sample(ids, torch.arange(length) >= 8, features)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target(tmp_path_factory.mktemp("fit") / "target")


@pytest.fixture(scope="module")
def fitted(target: Target) -> tuple[Drafter, float]:
    model = Drafter(CONFIG)
    missed = fit(model, target.facts, target.ends, [target.sample(i) for i in range(60)])
    return model, missed


@dataclasses.dataclass(frozen=True)
class Trained:
    """A drafter fitted to the tiny dense target, and a text it was not fitted to."""

    model: Drafter
    ends: Ends
    text: Sample
    mean: Tensor
    missed: float

    def inputs(self, anchors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the drafter is given for blocks at ``anchors``."""
        config = self.model.config
        ids = block_inputs(self.text.input_ids[anchors], config.block, config.mask_token_id)
        return self.text.hidden_states[None], self.ends.embed(ids[None]), anchors[None]


@pytest.fixture(scope="module")
def trained() -> Trained:
    folder = PAIR / "target"
    config = json.loads((folder / "config.json").read_text())
    layers = (0, 1, 2)
    facts = dataclasses.replace(FACTS, path=str(folder), layers=4)
    shape = Shape(
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=2,
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        vocab=config["vocab_size"],
        rope_theta=config["rope_theta"],
        norm_eps=config["rms_norm_eps"],
        max_positions=256,
    )
    target = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    @torch.inference_mode()
    def sample(prompt: str) -> Sample:
        ids = target.generate(
            tokenizer(prompt, return_tensors="pt").input_ids[:, :64],
            max_new_tokens=96, min_new_tokens=96, do_sample=False, pad_token_id=0,
        )  # fmt: skip
        states = target(ids, output_hidden_states=True).hidden_states
        features = torch.cat([states[i + 1][0] for i in layers], -1)
        return Sample(ids[0].clone(), torch.arange(ids.shape[1]) >= 8, features.clone())

    texts = [
        sample(json.loads(line)["prompt"])
        for line in (PAIR / "prompts.jsonl").read_text().splitlines()[:24]
    ]
    ends = Ends.of(str(folder)).place(torch.device("cpu"), torch.float32)
    model = Drafter(DrafterConfig(shape, 8, layers, 3, (None, None)))
    states = torch.cat([text.hidden_states[8:, -shape.hidden :] for text in texts[:-1]])
    missed = fit(model, facts, ends, texts[:-1])
    return Trained(model, ends, texts[-1], states.mean(0), missed)


@torch.no_grad()
def test_the_first_layer_guesses_the_targets_states(trained: Trained) -> None:
    """Slot 1's by attention, nearer than the mean state is; the others' by the maps of the MLP."""
    layer, found = trained.model.layers[0], []

    def keep_input(module: torch.nn.Module, given: tuple[Tensor], output: Tensor) -> None:
        found.append(given[0])

    hooks = [
        layer.post_attention_layernorm.register_forward_hook(keep_input),
        layer.register_forward_hook(lambda *given: found.append(given[-1])),
    ]
    anchors = torch.arange(20, len(trained.text) - 8)
    trained.model(*trained.inputs(anchors))
    for hook in hooks:
        hook.remove()
    before, after = (states[0] for states in found[:2])
    hidden = trained.model.config.shape.hidden

    def error(guess: Tensor, slot: int) -> float:
        truth = trained.text.hidden_states[anchors + slot - 1, -hidden:]
        return float(((guess - truth).square().mean(-1) / truth.square().mean(-1)).mean())

    # Heads that look elsewhere too, on another text, miss more than the regression does.
    assert trained.missed < error(after[:, 1], 1) < 0.8 * error(trained.mean, 1)
    for slot in range(2, 8):
        assert error(after[:, slot], slot) < 0.9 * error(before[:, slot], slot)
        assert error(after[:, 1], 1) < error(after[:, slot], slot)


@torch.no_grad()
def test_a_fitted_drafter_foresees_tokens(trained: Trained) -> None:
    anchors = torch.arange(20, len(trained.text) - 8)
    logits = trained.model(*trained.inputs(anchors))[0] @ trained.ends.head.T
    hits = [
        float((logits[:, slot].argmax(-1) == trained.text.input_ids[anchors + slot]).float().mean())
        for slot in (1, 2, 3)
    ]
    assert hits[0] > 0.4
    assert hits[1] > 0.15


@torch.no_grad()
def test_where_the_first_layers_heads_look(trained: Trained) -> None:
    """On average over anchors: of some tokens the embeddings look like something else."""
    model, anchors = trained.model, torch.arange(20, 120)
    size, block = model.config.shape, model.config.block
    features, embeds, places = trained.inputs(anchors)
    layer, view = model.layers[0], model.view(features, embeds, places)
    normed = layer.input_layernorm(embeds)
    queries = layer.self_attn.queries(normed, *view.block_rope(block))
    own, _ = layer.self_attn.keys_values(normed, *view.block_rope(block))
    context = model.hidden_norm(model.fc(features))
    before, _ = layer.self_attn.keys_values(context, *view.context_rope())
    for group in range(size.kv_heads):
        parts = []
        for index, anchor in enumerate(anchors.tolist()):
            keys = torch.cat([before[0, group, anchor - 6 : anchor], own[0, index, group]])
            hidden = before[0, group, : anchor - 6]
            scores = queries[0, index, 3 * group : 3 * group + 3, 1:] @ torch.cat([hidden, keys]).T
            parts.append((scores / size.head_dim**0.5).softmax(-1)[..., -6 - block :])
        seen = torch.stack(parts).mean(0)  # [3, block - 1, 6 + block]
        assert seen[0, 0, 5] > 0.8, "slot 1, the nearest token of the context"
        assert seen[0, :, :6].sum(-1).min() > 0.8, "or about there"
        assert seen[1, :, 6].min() > 0.6, "the anchor"
        # The first group's third head tells slot 2 from the others, the last one's the later.
        to_anchor, to_masks = seen[2, :, 6], seen[2, :, 7:].sum(-1)
        slots = torch.arange(1, block)
        chosen = slots == 2 if group == 0 else slots < 3
        assert to_anchor[chosen].min() > 0.7
        assert to_masks[~chosen].min() > 0.5


@torch.no_grad()
def test_the_other_layers_and_the_norms_are_the_targets(
    target: Target, fitted: tuple[Drafter, float]
) -> None:
    model, _ = fitted
    last: Layer = list(target.layers)[-1]
    for name, weight in model.layers[1].named_parameters():
        if "q_norm" not in name and "k_norm" not in name:
            assert torch.equal(weight, last.get_parameter(name)), name
    assert torch.equal(model.norm.weight, target.norm.weight)
    state = target.sample(5).hidden_states
    expected = last.input_layernorm(state[:, -HIDDEN:])
    torch.testing.assert_close(model.hidden_norm(model.fc(state)), expected)


@torch.no_grad()
def test_scores_of_copied_layers_have_their_mean_size(
    target: Target, fitted: tuple[Drafter, float]
) -> None:
    """A target without query and key norms: the drafter's stand for their mean sizes."""
    attention = fitted[0].layers[1].self_attn
    state = torch.cat([target.sample(i).hidden_states for i in range(5)])[:, -HIDDEN:]
    size = attention.k_proj(fitted[0].layers[1].input_layernorm(state)).square().mean().sqrt()
    torch.testing.assert_close(attention.k_norm.weight, size.expand(32), rtol=0.1, atol=0)


def test_norms_that_the_target_has_are_kept(tmp_path: Path) -> None:
    target = Target(tmp_path / "target", norms=True)
    model = Drafter(CONFIG)
    fit(model, target.facts, target.ends, [target.sample(i) for i in range(3)])
    own = list(target.layers)[-1].self_attn.k_norm.weight
    assert torch.equal(model.layers[1].self_attn.k_norm.weight, own)


def moments(noise: float, rank: int) -> tuple[Moments, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    hidden, sums = 12, Moments(12)
    shared = normal(hidden, rank)
    full = torch.cat([shared @ normal(rank, hidden), shared @ normal(rank, hidden)])
    x = normal(4000, 2 * hidden)
    y = x @ full + noise * normal(4000, hidden)
    sums.add(x, y, torch.zeros(hidden))
    return sums, x, y


def test_reduced_rank_finds_a_shared_subspace() -> None:
    sums, x, y = moments(noise=0.0, rank=3)
    values, outputs, missed = reduced_rank(sums, torch.ones(12), 3)
    assert missed < 1e-3
    found = x[:, :12] @ values.T @ outputs[0] + x[:, 12:] @ values.T @ outputs[1]
    assert (found - y).square().mean() < 2e-3 * y.square().mean()


def test_reduced_rank_at_full_rank_is_least_squares() -> None:
    sums, x, y = moments(noise=1.0, rank=12)
    weight = y.square().mean(-1, keepdim=True).rsqrt()
    exact = torch.linalg.lstsq(x * weight, y * weight).solution
    values, outputs, _ = reduced_rank(sums, torch.ones(12), 12)
    ours = torch.cat([values.T @ outputs[0], values.T @ outputs[1]])
    torch.testing.assert_close(ours, exact, rtol=1e-2, atol=1e-2)


def test_more_rank_misses_less_and_important_dimensions_least() -> None:
    sums, x, y = moments(noise=0.3, rank=6)
    missed = [reduced_rank(sums, torch.ones(12), rank)[2] for rank in (1, 2, 4, 6)]
    assert missed == sorted(missed, reverse=True)
    importance = torch.ones(12)
    importance[0] = 30.0

    def error(weights: Tensor) -> float:
        values, outputs, _ = reduced_rank(sums, weights, 1)
        found = x[:, :12] @ values.T @ outputs[0] + x[:, 12:] @ values.T @ outputs[1]
        return float((found - y)[:, 0].square().mean())

    assert error(importance) < 0.7 * error(torch.ones(12))


@pytest.mark.parametrize(
    ("changes", "shape", "reason"),
    [
        ({"target_layer_ids": (1, 2)}, {}, r"reads target layer 2 .* --target-layers \.\.\.,3"),
        ({"target_layer_ids": (1, 2)}, {"layers": 4}, r"the 2 of the target .* \.\.\.,1"),
        ({}, {"kv_heads": 6}, "two heads must share each KV head"),
        ({}, {"head_dim": 16}, "heads of 16 dimensions"),
    ],
)
def test_drafters_that_can_not_be_fitted(
    target: Target, changes: dict, shape: dict, reason: str
) -> None:
    config = dataclasses.replace(CONFIG, shape=dataclasses.replace(SHAPE, **shape), **changes)
    with pytest.raises(DrafterError, match=reason):
        tail_of(config, target.facts)


def test_a_target_whose_last_layer_is_no_attention(target: Target, tmp_path: Path) -> None:
    weights = {n: w for n, w in target.layers.state_dict().items() if "4.self_attn" not in n}
    weights = {f"model.layers.{n}": w for n, w in weights.items()}
    save_file(weights | {"model.norm.weight": torch.ones(HIDDEN)}, str(tmp_path / "m.safetensors"))
    facts = dataclasses.replace(target.facts, path=str(tmp_path))
    with pytest.raises(DrafterError, match=r"no layers\.4\.self_attn\.q_proj"):
        fit(Drafter(CONFIG), facts, target.ends, [target.sample(0)])


def test_texts_without_a_token_of_the_targets_own(target: Target) -> None:
    sample = target.sample(0)
    mute = dataclasses.replace(sample, loss_mask=torch.zeros(len(sample), dtype=torch.bool))
    with pytest.raises(DrafterError, match="no token of the target's own"):
        fit(Drafter(CONFIG), target.facts, target.ends, [mute])
