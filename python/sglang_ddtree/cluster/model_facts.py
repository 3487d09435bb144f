"""Numbers of the targets that the project names.

Each group of numbers has its source in `sources`; groups in `uncertain` are estimates. "config"
is the published config.json of the repository, or what public code and articles quote of it;
"derived" is arithmetic on that.
"""

from __future__ import annotations

from sglang_ddtree.cluster.models import DrafterFacts, KvLayers, ModelFacts, Recurrent

QWEN36_27B = ModelFacts(
    name="qwen3.6-27b",
    repository="Qwen/Qwen3.6-27B",
    layers=64,
    hidden=5120,
    heads=24,
    kv=(KvLayers(layers=16, heads=4, row=2 * 256, score=2 * 256),),
    recurrent=Recurrent(layers=48, key_heads=16, value_heads=48),
    weight_bytes=55_560_000_000,
    embedding_bytes=248_320 * 5120 * 2,
    head_bytes=248_320 * 5120 * 2,
    active_params=26_500_000_000,
    context_limit=262_144,
    drafter=DrafterFacts(
        "z-lab/Qwen3.6-27B-DFlash",
        block=16,
        layers=5,
        kv_heads=8,
        head_dim=128,
        weight_bytes=3_460_000_000,
    ),
    sources={
        "shape": "model card and config: 16 x (3 GDN + 1 attention), GQA 24/4 x 256, GDN heads "
        "48 V / 16 QK x 128, conv 4, mamba_ssm_dtype float32, vocabulary 248320, untied",
        "weights": "total_size of model.safetensors.index.json, bf16, vision tower included",
        "active": "derived: weights without the embedding",
        "drafter": "derived from a config of the same family: 5 layers, 32/8 heads x 128, FFN "
        "17408, 5 captured layers",
    },
    uncertain=("drafter",),
)

QWEN3_NEXT_80B = ModelFacts(
    name="qwen3-next-80b-a3b",
    repository="Qwen/Qwen3-Next-80B-A3B-Instruct",
    layers=48,
    hidden=2048,
    heads=16,
    kv=(KvLayers(layers=12, heads=2, row=2 * 256, score=2 * 256),),
    recurrent=Recurrent(layers=36, key_heads=16, value_heads=32),
    weight_bytes=162_700_000_000,
    embedding_bytes=151_936 * 2048 * 2,
    head_bytes=151_936 * 2048 * 2,
    active_params=3_000_000_000,
    experts=512,
    experts_per_token=10,
    expert_bytes=48 * 512 * 3 * 2048 * 512 * 2,
    context_limit=262_144,
    drafter=DrafterFacts(
        None,
        block=16,
        layers=8,
        kv_heads=4,
        head_dim=128,
        weight_bytes=1_000_000_000,
    ),
    sources={
        "shape": "config: 48 layers (12 attention, GQA 16/2 x 256; 36 GDN, 32 V / 16 QK x 128), "
        "512 experts of width 512, 10 a token and 1 shared, vocabulary 151936",
        "weights": "derived: 81.3e9 parameters in bf16; experts from the shape",
        "active": "name of the model (A3B)",
        "drafter": "no config at hand; one for the Coder sibling is public",
    },
    uncertain=("drafter", "weights"),
)

_KIMI_EXPERTS = 60 * 384 * 3 * 7168 * 2048

KIMI_K2 = ModelFacts(
    name="kimi-k2.6",
    repository="moonshotai/Kimi-K2.6",
    layers=61,
    hidden=7168,
    heads=64,
    kv=(KvLayers(layers=61, heads=1, row=576, latent=True, score=576 + 512),),
    # INT4 in groups of 32 with one bf16 scale: 4.5 bits.
    expert_bytes=_KIMI_EXPERTS * 9 // 16,
    weight_bytes=_KIMI_EXPERTS * 9 // 16 + 24_000_000_000,
    embedding_bytes=163_840 * 7168 * 2,
    head_bytes=163_840 * 7168 * 2,
    # Down-projections of queries and latents are not sharded.
    replicated_bytes=61 * (7168 * 1536 + 7168 * 576) * 2,
    active_params=32_000_000_000,
    experts=384,
    experts_per_token=8,
    context_limit=262_144,
    drafter=DrafterFacts(
        None,
        block=16,
        layers=6,
        kv_heads=8,
        head_dim=128,
        weight_bytes=6_600_000_000,
    ),
    sources={
        "shape": "config of the DeepSeek-V3 lineage: 61 layers (1 dense), hidden 7168, 64 heads, "
        "latent 512 + 64, 384 experts of width 2048, 8 a token and 1 shared, vocabulary 163840; "
        "K2.5 has the same shape",
        "weights": "derived: 4.5 bits for routed experts, bf16 for 12e9 other parameters; 595 GB "
        "= 554 GiB, where ~547 is stated for the files",
        "active": "model card: 32B activated",
        "drafter": "6 layers, 8 KV heads x 128, captured layers 1,12,24,35,47,58 of a ported "
        "preview; weights derived with FFN 18432",
    },
    uncertain=("drafter", "weights"),
    server_arguments=("--trust-remote-code",),
)

GEMMA4_31B = ModelFacts(
    name="gemma-4-31b",
    repository="google/gemma-4-31B-it",
    layers=60,
    hidden=5376,
    heads=32,
    kv=(
        KvLayers(layers=50, heads=16, row=2 * 256, window=1024, score=2 * 256),
        KvLayers(layers=10, heads=4, row=2 * 512, score=2 * 512),
    ),
    weight_bytes=61_400_000_000,
    embedding_bytes=0,
    head_bytes=262_144 * 5376 * 2,
    active_params=30_700_000_000,
    context_limit=262_144,
    drafter=DrafterFacts(
        "z-lab/gemma-4-31B-it-DFlash",
        block=16,
        layers=5,
        kv_heads=8,
        head_dim=128,
        weight_bytes=3_100_000_000,
    ),
    sources={
        "shape": "config: 60 layers, 5 sliding (16 KV heads x 256, window 1024) to 1 global (4 KV "
        "heads x 512), hidden 5376, 32 heads, tied vocabulary of 262144; global layers share K "
        "and V, counted as two here",
        "weights": "30.7e9 parameters in bf16, 61 GB",
        "active": "dense",
        "drafter": "layer count not published in text; weights from the size of an 8-bit copy",
    },
    uncertain=("drafter",),
)

QWEN3_8B = ModelFacts(
    name="qwen3-8b",
    repository="Qwen/Qwen3-8B",
    layers=36,
    hidden=4096,
    heads=32,
    kv=(KvLayers(layers=36, heads=8, row=2 * 128, score=2 * 128),),
    weight_bytes=16_380_000_000,
    embedding_bytes=151_936 * 4096 * 2,
    head_bytes=151_936 * 4096 * 2,
    active_params=7_570_000_000,
    context_limit=40_960,
    drafter=DrafterFacts(
        "z-lab/Qwen3-8B-DFlash-b16",
        block=16,
        layers=5,
        kv_heads=8,
        head_dim=128,
        weight_bytes=2_100_000_000,
    ),
    sources={
        "shape": "config: 36 layers, hidden 4096, GQA 32/8 x 128, FFN 12288, vocabulary 151936, "
        "untied",
        "weights": "8.19e9 parameters in bf16",
        "active": "derived: parameters without the embedding",
        "drafter": "block 16 and 5 layers of the DFlash paper's drafter; weights derived",
    },
)

MODELS = {
    facts.name: facts for facts in (QWEN36_27B, QWEN3_NEXT_80B, KIMI_K2, GEMMA4_31B, QWEN3_8B)
}
_ALIASES = {"kimi-k2.5": KIMI_K2.name, "gemma-4-31b-it": GEMMA4_31B.name}


def model_facts(name: str) -> ModelFacts:
    """Facts of a model by its name or repository, in any case.

    Raises KeyError that lists the known names.
    """
    key = name.rsplit("/", 1)[-1].lower().removesuffix("-instruct")
    key = _ALIASES.get(key, key)
    if key not in MODELS:
        known = ", ".join(sorted({*MODELS, *_ALIASES}))
        raise KeyError(f"no facts about {name!r}; known are {known}")
    return MODELS[key]
