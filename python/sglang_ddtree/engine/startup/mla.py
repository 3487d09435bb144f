"""Which latent-attention (MLA) targets and which attention backends verify trees in SGLang 0.5.23.

Every row is asserted at start-up; what is not listed is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig

# Every attention layer of these is DeepseekV2AttentionMLA (srt/models/deepseek_v2.py:2010@0.5.23),
# and their models capture layers for DFLASH. Kimi K2.5 and K2.6 are one class, whose text model is
# DeepSeek-V3's (srt/models/kimi_k25.py@0.5.23); Glm4MoeLite is GLM-4.7-Flash.
MLA_ARCHITECTURES = (
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "KimiK25ForConditionalGeneration",
)

# Why a tree can't be verified by a backend that is known to take a draft without a word.
CAUSAL_BACKENDS = {
    "cutedsl_mla": "its verify kernel takes no mask and reads a draft as consecutive tokens",
    "dsa": "it attends to keys that its indexer picked, and neither knows a tree",
    "fa3": "its verification is causal but for EAGLE's cascade",
    "fa4": "its verification is causal but for EAGLE's cascade",
    "flashinfer": "its MLA path plans verification as causal and drops the mask",
    "flashmla": "its verify kernel takes no mask and is causal",
    "nsa": "it attends to keys that its indexer picked, and neither knows a tree",
    "tokenspeed_mla": "its verify kernel takes no mask and reads a draft as consecutive tokens",
    "trtllm_mha": "its kernels take no mask and read a draft as consecutive tokens",
    "trtllm_mla": "its verify kernel takes no mask and reads a draft as consecutive tokens",
}


def backend_problem(backend: str) -> str:
    """The refusal of an attention backend that does not verify trees."""
    reason = CAUSAL_BACKENDS.get(backend)
    return (
        f"attention backend {backend!r} would verify a tree as a chain"
        f"{f' ({reason})' if reason else ''}: use --attention-backend triton (torch_tree without "
        "a GPU)"
    )


def architecture_problem(target: ModelConfig) -> str | None:
    """Why trees are not verified in an MLA target, or ``None``: other targets are not ours."""
    from sglang.srt.configs.model_config import AttentionArch, is_deepseek_dsa

    if target.attention_arch != AttentionArch.MLA:
        return None
    architecture = target.hf_config.architectures[0]
    if is_deepseek_dsa(target.hf_text_config) or is_deepseek_dsa(target.hf_config):
        return (
            f"{architecture} with an index_topk attends to keys that an indexer picks (DSA), which "
            "does not know a tree: serve it without speculation or with a chain"
        )
    if architecture not in MLA_ARCHITECTURES:
        return (
            f"{architecture} keeps a latent (MLA) cache, and its trees were not tried; those of "
            f"{', '.join(MLA_ARCHITECTURES)} are verified"
        )
    return None
