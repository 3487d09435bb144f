"""Triton compiles its kernels for both architectures without a GPU, within a block's memory.

The interpreter takes what the compiler does not: types that change in a loop, tiles too large.
"""

from __future__ import annotations

from typing import Any

import pytest
import triton.language as tl
from sglang_ddtree._kernels.triton import accept, gated_delta, grow, tree_attention
from triton import compile as compile_kernel
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sglang_ddtree.ops.resources import SHARED_LIMIT
from sglang_ddtree.ops.tree_attention.triton import key_block, row_tiles

pytestmark = pytest.mark.skipif(
    knobs.runtime.interpret, reason="TRITON_INTERPRET is set: kernels are interpreted, not compiled"
)

FLOATS = {"qk_scale", "v_scale", "soft_cap", "scale"}
INT32 = {
    "arrived_ptr",
    "table_ptr",
    "depth_ptr",
    "parent_ptr",
    "length_ptr",
    "out_parent_ptr",
    "out_depth_ptr",
    "out_num_nodes_ptr",
}
FLOAT32 = {
    "lse_ptr",
    "partial_ptr",
    "partial_lse_ptr",
    "a_log_ptr",
    "dt_bias_ptr",
    "state_ptr",
    "keys_ptr",
    "updates_ptr",
    "log_decay_ptr",
    "log_probs_ptr",
    "siblings_ptr",
    "out_log_prob_ptr",
}
BFLOAT16 = {
    "q_ptr",
    "k_ptr",
    "v_ptr",
    "out_ptr",
    "x_ptr",
    "a_ptr",
    "b_ptr",
    "weight_ptr",
    "bias_ptr",
    "window_ptr",
    "inputs_ptr",
}


def attention(dim: int, rope: int, group: int, nodes: int = 32, capped: bool = False) -> dict:
    rows, _ = row_tiles(nodes, group, dim)
    return {
        "NODES": nodes,
        "HEADS": group,
        "GROUP": group,
        "DIM": dim,
        "ROPE": rope,
        "V_DIM": dim,
        "BLOCK_DIM": dim,
        "BLOCK_V": dim,
        "BLOCK_ROWS": rows,
        "BLOCK_KEYS": key_block(dim, rope > 0),
        "WORDS": 1,
        "PAGE": 16,
        "SPLITS": 8,
        "DOT_TYPE": tl.bfloat16,
        "LATENT": rope > 0,
        "WINDOWED": capped,
        "CAPPED": capped,
    }


LAYER = {
    "NODES": 20,
    "K_HEADS": 2,
    "V_HEADS": 4,
    "K_DIM": 64,
    "V_DIM": 64,
    "TAPS": 4,
    "WORDS": 1,
    "BLOCK_NODES": 16,
    "ALL_NODES": 32,
    "BLOCK_V": 32,
}
GROWN = {"D": 15, "K": 8, "NODES": 64, "SPINE": True, "WORDS": 1, "BLOCK": 64, "BLOCK_WORDS": 1}
CASES: dict[str, tuple[Any, dict, int, int]] = {
    # kernel, constants, warps, stages
    "MLA": (tree_attention.tree_attention_kernel, attention(512, 64, 8), 8, 1),
    "GQA 64": (tree_attention.tree_attention_kernel, attention(64, 0, 2, 8, capped=True), 4, 2),
    "GQA 512": (tree_attention.tree_attention_kernel, attention(512, 0, 8), 8, 1),
    "verify": (gated_delta.verify_kernel, LAYER | {"HAS_BIAS": True, "SILU": True}, 4, 1),
    "commit": (gated_delta.commit_kernel, LAYER | {"REQUESTS": 2}, 4, 1),
    "grow": (grow.grow_kernel, GROWN | {"LIMITED": True, "CONDITIONAL": True}, 1, 2),
    "accept": (
        accept.accept_kernel,
        {"NODES": 64, "WORDS": 1, "STEPS": 16, "BLOCK": 64, "BLOCK_WORDS": 1, "BLOCK_STEPS": 16},
        4,
        2,
    ),
    "move": (
        accept.move_rows_kernel,
        {"STEPS": 16, "BLOCK_STEPS": 16, "BLOCK": 256, "WORD": tl.int16},
        4,
        2,
    ),
}


def type_of(name: str) -> str:
    if name in FLOATS:
        return "fp32"
    if not name.endswith("_ptr"):
        return "i32"
    for names, kind in ((INT32, "*i32"), (FLOAT32, "*fp32"), (BFLOAT16, "*bf16")):
        if name in names:
            return kind
    return "*i64"


@pytest.mark.parametrize("case", CASES)
def test_compiles_within_the_limits(case: str) -> None:
    kernel, constants, warps, stages = CASES[case]
    names = [parameter.name for parameter in kernel.params]
    assert set(constants) <= set(names)
    signature = {name: "constexpr" if name in constants else type_of(name) for name in names}
    source = ASTSource(
        kernel, signature, {(names.index(name),): value for name, value in constants.items()}
    )
    # One architecture a kernel: Hopper only where its code differs, in what feeds tensor cores.
    for capability in (90, 120) if case == "GQA 64" else (120,):
        compiled = compile_kernel(
            source,
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": warps, "num_stages": stages},
        )
        assert compiled.metadata.shared <= SHARED_LIMIT
        if case.startswith(("MLA", "GQA")):
            assert "mma" in compiled.asm["ptx"]
