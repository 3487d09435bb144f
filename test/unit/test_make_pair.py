"""The pair maker: corpus, models against transformers and a per-block oracle, resume, export."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from make_pair import documents, drafting, evaluate, export, generation, hybrid, stages, tokens
from make_pair.hub import PAIRS, HubTarget
from make_pair.model import KVCache, Target, rope_table
from make_pair.prompts import held_out_prompts, trained_chats
from make_pair.recipe import RECIPES, TINY_DENSE, ModelSize, Recipe, Schedule

from sglang_ddtree.drafter.training.state import Checkpoints
from unit.drafter_runs import randomise

SIZE = ModelSize(hidden=32, intermediate=48, layers=4, heads=4, head_dim=16, vocab=300)
RECIPE = Recipe(
    name="toy",
    target=SIZE,
    drafter=replace(SIZE, layers=2),
    target_run=Schedule(steps=6, sequences=2, seed=1, warmup=2, save_every=2),
    drafter_run=Schedule(steps=6, sequences=2, seed=2, warmup=2, save_every=2),
    sequence=64,
    block=4,
    anchors=3,
    self_generated=128,
)


IMITATIONS = [recipe for recipe in RECIPES.values() if recipe.teacher]
by_name = pytest.mark.parametrize("recipe", IMITATIONS, ids=lambda recipe: recipe.name)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with tokenizer and streams of a small corpus."""
    folder = tmp_path_factory.mktemp("pair")
    generated = [text for _, text in documents.generated_documents(RECIPE.seed, 40)]
    tokenizer = tokens.train_tokenizer(generated, SIZE.vocab)
    tokenizer.save(str(folder / "tokenizer.json"))
    np.save(folder / "generated.npy", tokens.encode(tokenizer, generated))
    np.save(folder / "stdlib.npy", tokens.encode(tokenizer, generated[::-1]))
    return folder


def fresh(work: Path, folder: Path) -> Path:
    return Path(shutil.copytree(work, folder))


def test_generated_code_is_python_and_reproducible() -> None:
    for kind, text in documents.generated_documents(5, 300):
        body = text.removesuffix(documents.END_OF_TEXT)
        blocks = [body]
        if kind == "chat":
            blocks = [part.split("```")[0] for part in body.split("```python\n")[1:]]
        for block in blocks:
            ast.parse(block)
    again = list(documents.generated_documents(5, 20))
    assert again == list(documents.generated_documents(5, 20))
    assert len({text for _, text in documents.generated_documents(5, 300)}) > 290


def test_library_files_are_split_without_overlap() -> None:
    kept = set(documents.stdlib_files(held_out=False))
    held = set(documents.stdlib_files(held_out=True))
    assert kept
    assert held
    assert not kept & held


def test_chat_template_renders_what_was_trained(work: Path) -> None:
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    fast = tokens.as_transformers(tokenizer, 128)
    messages = documents.chat_messages(Random(3))
    rendered = fast.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == documents.render_chat(messages, open_turn=True)
    ids = fast(rendered)["input_ids"]
    assert ids.count(tokens.TURN_START_ID) == len(messages) + 1
    assert ids.count(tokens.TURN_END_ID) == len(messages)
    assert fast.decode(ids) == rendered


def test_cached_decoding_equals_one_pass() -> None:
    model = Target(SIZE)
    randomise(model, 1)
    ids = torch.randint(0, SIZE.vocab, (2, 12))
    whole = model.logits(model.hidden_states(ids))
    cache = KVCache(SIZE, 2, 12, torch.float32)
    parts = [model.logits(model.hidden_states(part, cache)) for part in ids.split([5, 1, 4, 2], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-4)


def test_exported_target_loads_in_transformers(work: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = Target(SIZE)
    randomise(model, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    export.export_target(model, RECIPE, work / "tokenizer.json", tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert type(loaded).__name__ == "Qwen3ForCausalLM"
    ids = torch.randint(0, SIZE.vocab, (1, 20))
    expected = loaded(ids, output_hidden_states=True)
    states = model.hidden_states(ids)
    torch.testing.assert_close(model.logits(states), expected.logits, rtol=1e-4, atol=1e-4)
    for layer in RECIPE.target_layer_ids:
        upstream = expected.hidden_states[layer + 1]
        torch.testing.assert_close(states[layer], upstream, rtol=1e-4, atol=1e-4)
    assert AutoTokenizer.from_pretrained(tmp_path).eos_token_id == tokens.TURN_END_ID


def test_a_killed_run_resumes_to_the_same_weights(work: Path, tmp_path: Path) -> None:
    whole, killed = fresh(work, tmp_path / "whole"), fresh(work, tmp_path / "killed")
    expected = stages.train_target(RECIPE, whole).state_dict()
    stages.train_target(RECIPE, killed, stop_after=3)
    assert Checkpoints(killed / "target").finished() == [2]
    resumed = stages.train_target(RECIPE, killed).state_dict()
    for name, weight in expected.items():
        assert torch.equal(weight, resumed[name]), name
    assert not torch.equal(expected["model.norm.weight"], torch.ones(SIZE.hidden))
    steps = [json.loads(line)["step"] for line in (killed / "target.jsonl").open()]
    assert steps == sorted(set(steps))
    assert steps[-1] == RECIPE.target_run.steps - 1


def test_drafter_stage_trains_resumes_and_exports(work: Path, tmp_path: Path) -> None:
    folder = fresh(work, tmp_path / "one")
    stages.train_target(RECIPE, folder)
    generation.self_generate(RECIPE, folder)
    rows = np.load(folder / "self.npy")
    assert rows.shape == (RECIPE.self_generated, RECIPE.sequence)
    assert rows.max() < SIZE.vocab
    other = fresh(folder, tmp_path / "two")
    expected = drafting.train_drafter(RECIPE, folder).state_dict()
    drafting.train_drafter(RECIPE, other, stop_after=5)
    resumed = drafting.train_drafter(RECIPE, other).state_dict()
    assert all(torch.equal(weight, resumed[name]) for name, weight in expected.items())
    model = drafting.load_drafter(RECIPE, folder)
    export.export_drafter(model, RECIPE, tmp_path / "drafter")
    weights = load_file(tmp_path / "drafter" / "model.safetensors")
    assert weights["fc.weight"].shape == (SIZE.hidden, 3 * SIZE.hidden)
    assert set(weights) == set(dict(model.named_parameters()))
    assert all(weight.dtype == torch.bfloat16 for weight in weights.values())
    config = json.loads((tmp_path / "drafter" / "config.json").read_text())
    assert config["block_size"] == RECIPE.block
    assert config["dflash_config"]["mask_token_id"] == tokens.MASK_ID


def test_greedy_rows_of_self_generated_text_are_greedy() -> None:
    model = Target(SIZE).requires_grad_(False)
    randomise(model, 4)
    prefix = torch.randint(0, SIZE.vocab, (4, 6))
    temperature = torch.tensor([0.0, 1.0, 0.0, 0.7])
    rows = generation.continue_batch(model, prefix, 16, temperature, torch.Generator())
    with stages.mixed_precision():
        logits = model.logits(model.hidden_states(rows)).float()
    for row in (0, 2):
        for position in range(5, 15):
            scores = logits[row, position]
            assert scores[rows[row, position + 1]] > scores.max() - 0.3


def exhaustive_tree(log_probs: np.ndarray, budget: int) -> set[tuple[int, ...]]:
    """Oracle: the ``budget`` likeliest paths among all."""
    paths: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    every = []
    for row in log_probs:
        paths = [(s + float(p), (*path, rank)) for s, path in paths for rank, p in enumerate(row)]
        every += paths
    return {path for _, path in sorted(every, key=lambda pair: -pair[0])[:budget]}


@pytest.mark.parametrize("budget", [1, 3, 9, 20])
def test_best_first_takes_the_likeliest_paths(budget: int) -> None:
    rng = np.random.default_rng(budget)
    raw = rng.normal(size=(4, 5)) * 2
    log_probs = -np.sort(-(raw - np.log(np.exp(raw).sum(-1, keepdims=True))))
    tree = evaluate.best_first(log_probs, budget, spine=False)
    assert tree == exhaustive_tree(log_probs, budget)
    spined = evaluate.best_first(log_probs, max(budget, 4), spine=True)
    assert {(0,) * depth for depth in range(1, 5)} <= spined
    assert len(spined) == max(budget, 4)


def test_figures_of_known_texts() -> None:
    assert evaluate.repeated_share([1, 2] * 8, size=2) == pytest.approx(13 / 15)
    assert evaluate.repeated_share(list(range(20))) == 0
    assert evaluate.look_up([5, 6, 7, 8, 5, 6], 3) == [7, 8, 5]
    assert evaluate.accepted({(0,), (0, 1), (2,)}, [0, 1, 0]) == 2


def test_held_out_prompts_are_new_and_of_every_kind() -> None:
    prompts = held_out_prompts(TINY_DENSE)
    kinds = [prompt["kind"] for prompt in prompts]
    assert len(prompts) >= 64
    assert set(kinds) == {"chat", "module", "stdlib"}
    assert len({prompt["prompt"] for prompt in prompts}) == len(prompts)
    trained = "".join(text for _, text in documents.generated_documents(TINY_DENSE.seed, 2000))
    modules = [prompt["prompt"] for prompt in prompts if prompt["kind"] == "module"]
    assert not any(text in trained for text in modules)
    chats = {prompt["prompt"] for prompt in prompts if prompt["kind"] == "chat"}
    assert not chats & trained_chats(TINY_DENSE)


def test_chats_of_training_are_known_up_to_each_answer() -> None:
    recipe = replace(TINY_DENSE, generated_documents=40)
    chats = trained_chats(recipe)
    texts = dict(documents.generated_documents(recipe.seed, 40))
    assert len(chats) > 20
    assert all(chat.endswith("assistant\n") for chat in chats)
    assert sum(texts["chat"].startswith(chat) for chat in chats) == texts["chat"].count(
        "assistant\n"
    )


def test_shipped_prompts_are_those_of_the_recipe() -> None:
    """Chats and modules are; files of the library are those of the interpreter that made them."""
    shipped = (PAIRS / "tiny-dense" / "prompts.jsonl").read_text().splitlines()
    made = held_out_prompts(TINY_DENSE)
    assert [json.loads(line) for line in shipped][:64] == made[:64]


def shaken(recipe: Recipe, seed: int) -> HubTarget:
    """A target of the recipe's architecture, with all tensors off their starting values."""
    model = HubTarget(recipe).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    tensors = dict(model.named_parameters()) | {
        name: buffer for name, buffer in model.named_buffers() if "correction_bias" in name
    }
    for tensor in tensors.values():
        noise = torch.randn(tensor.shape, generator=generator)
        tensor.copy_((tensor + 0.1 * noise).bfloat16().float())
    return model


@by_name
def test_other_architectures_load_in_transformers(recipe: Recipe, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = shaken(recipe, 5)
    tokenizer = PAIRS / "tiny-dense" / "target" / "tokenizer.json"
    export.export_target(model, recipe, tokenizer, tmp_path)
    loaded, report = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    assert type(loaded).__name__ == export.target_config(recipe)["architectures"][0]
    assert not any(report.values()), report
    ids = torch.randint(0, recipe.target.vocab, (1, 80))
    expected = loaded(ids, output_hidden_states=True)
    states = model.hidden_states(ids)
    torch.testing.assert_close(model.logits(states), expected.logits, rtol=1e-4, atol=1e-4)
    for layer in recipe.target_layer_ids:
        upstream = expected.hidden_states[layer + 1]
        torch.testing.assert_close(states[layer], upstream, rtol=1e-4, atol=1e-4)


@by_name
def test_other_architectures_decode_as_in_one_pass(recipe: Recipe) -> None:
    model = shaken(recipe, 6)
    prefix = torch.randint(0, recipe.target.vocab, (2, 70))
    greedy = torch.zeros(2)
    rows = generation.continue_batch(model, prefix, 90, greedy, torch.Generator(), float32=True)
    logits = model.logits(model.hidden_states(rows))[:, 69:-1]
    chosen = logits.gather(-1, rows[:, 70:, None])[..., 0]
    torch.testing.assert_close(chosen, logits.max(-1).values, rtol=0, atol=1e-3)


@by_name
def test_imitation_starts_near_its_teacher_and_resumes(recipe: Recipe, tmp_path: Path) -> None:
    short = replace(recipe.target_run, steps=3, sequences=1, warmup=1, save_every=2)
    recipe = replace(recipe, target_run=short, sequence=48)
    tokenizer = Tokenizer.from_file(str(PAIRS / "tiny-dense" / "target" / "tokenizer.json"))
    texts = [text for _, text in documents.generated_documents(11, 10)]
    folders = tmp_path / "whole", tmp_path / "killed"
    for folder in folders:
        folder.mkdir()
        for stream in ("generated", "stdlib"):
            np.save(folder / f"{stream}.npy", tokens.encode(tokenizer, texts))
    expected = stages.train_target(recipe, folders[0]).state_dict()
    stages.train_target(recipe, folders[1], stop_after=3)
    assert Checkpoints(folders[1] / "target").finished() == [2]
    resumed = stages.train_target(recipe, folders[1]).state_dict()
    assert all(torch.equal(weight, resumed[name]) for name, weight in expected.items())
    first = json.loads((folders[0] / "target.jsonl").read_text().splitlines()[0])
    assert max(first["apart"]) < 1, "further from the teacher than nothing at all"


def test_hybrid_attention_keeps_every_fourth_frequency() -> None:
    size = TINY_DENSE.target
    cos, sin = rope_table(size, 50)
    order = hybrid._rotated_first(size.head_dim)
    assert sorted(order) == list(range(size.head_dim))
    rotated = size.head_dim // 4
    ours = rope_table(replace(size, head_dim=rotated), 50)
    torch.testing.assert_close(cos[:, order[:rotated]], ours[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(sin[:, order[:rotated]], ours[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_shipped_pair_is_that_of_its_recipe(recipe: Recipe) -> None:
    folder, dense = PAIRS / recipe.name, PAIRS / "tiny-dense"
    for part, config in (
        ("target", export.target_config(recipe)),
        ("drafter", export.drafter_config(recipe)),
    ):
        assert json.loads((folder / part / "config.json").read_text()) == config
        assert (folder / part / "model.safetensors").stat().st_size <= export.WEIGHT_LIMIT
    for name in ("prompts.jsonl", "target/tokenizer.json", "target/chat_template.jinja"):
        assert (folder / name).read_bytes() == (dense / name).read_bytes()
    assert max(recipe.target_layer_ids) < recipe.target.layers - 1, "the last is not captured"


@by_name
def test_shipped_target_knows_unseen_text(recipe: Recipe) -> None:
    """The teacher's loss on such text is 0.30 a token; that of a model that loops is above 3."""
    from transformers import AutoModelForCausalLM

    folder = PAIRS / recipe.name / "target"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    losses = []
    for _, text in documents.generated_documents(77, 6):
        ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False).ids[:300]])
        with torch.inference_mode():
            losses.append(float(model(ids, labels=ids).loss))
    assert sum(losses) / len(losses) < 0.8
