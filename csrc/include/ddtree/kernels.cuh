// Every variant that is built, by name.
//
// Contract: a kernel has `run(params, shared)` on the device, and on the host its grid, the size of
// its blocks and their dynamic shared memory. Names are those that
// ops/gdn_tree/cuda.py and ops/tree_attention/cuda.py ask for.
#pragma once

#include "ddtree/gated_delta.cuh"
#include "ddtree/mla_tree_attention.cuh"

namespace ddtree {

struct Grid {
  int size[3];
};

template <class Tile>
struct MlaKernel {
  using Params = MlaParams;
  static constexpr int kThreads = Tile::kThreads, kSharedBytes = Tile::kSharedBytes;
  static Grid grid(const Params& p) {
    return {{(p.nodes * p.heads + Tile::kRows - 1) / Tile::kRows, p.splits + 1, p.bs}};
  }
  static DDTREE_DEVICE void run(const Params& p, char* shared) {
    MlaTreeAttention<Tile>(p, shared).run();
  }
};

template <class Tile>
struct VerifyKernel {
  using Params = GatedDeltaParams;
  static constexpr int kThreads = Tile::kThreads, kSharedBytes = Tile::kSharedBytes;
  static Grid grid(const Params& p) { return {{p.v_dim / Tile::kSlice, p.v_heads, p.bs}}; }
  static DDTREE_DEVICE void run(const Params& p, char* shared) {
    GatedDeltaVerify<Tile>(p, shared).run();
  }
};

template <int kDim, class Model, class State>
struct CommitKernel {
  using Params = GatedDeltaCommitParams;
  using Body = GatedDeltaCommit<kDim, Model, State>;
  static constexpr int kThreads = 256, kSharedBytes = Body::kSharedBytes;
  static Grid grid(const Params& p) { return {{p.v_dim / kWarp, p.v_heads, p.layers * p.bs}}; }
  static DDTREE_DEVICE void run(const Params& p, char* shared) { Body(p, shared).run(); }
};

}  // namespace ddtree

// X(name, kernel); kernels have commas, so X is variadic.
#define DDTREE_MLA_KERNELS(X)                                        \
  X(mla_16_bf16, ddtree::MlaKernel<ddtree::MlaNarrow<ddtree::Bf16>>) \
  X(mla_32_bf16, ddtree::MlaKernel<ddtree::MlaWide<ddtree::Bf16>>)   \
  X(mla_16_e4m3, ddtree::MlaKernel<ddtree::MlaNarrow<ddtree::E4m3>>) \
  X(mla_32_e4m3, ddtree::MlaKernel<ddtree::MlaWide<ddtree::E4m3>>)

#define DDTREE_VERIFY(nodes, dim, model, state) \
  ddtree::VerifyKernel<ddtree::GatedDeltaTile<nodes, dim, model, state>>
#define DDTREE_GATED_DELTA_KERNELS(X)                                                \
  X(gdn_verify_32_128_bf16_float, DDTREE_VERIFY(32, 128, ddtree::Bf16, float))       \
  X(gdn_verify_64_128_bf16_float, DDTREE_VERIFY(64, 128, ddtree::Bf16, float))       \
  X(gdn_verify_64_64_float_float, DDTREE_VERIFY(64, 64, float, float))               \
  X(gdn_verify_64_128_bf16_bf16, DDTREE_VERIFY(64, 128, ddtree::Bf16, ddtree::Bf16)) \
  X(gdn_commit_128_bf16_float, ddtree::CommitKernel<128, ddtree::Bf16, float>)       \
  X(gdn_commit_64_float_float, ddtree::CommitKernel<64, float, float>)               \
  X(gdn_commit_128_bf16_bf16, ddtree::CommitKernel<128, ddtree::Bf16, ddtree::Bf16>)
