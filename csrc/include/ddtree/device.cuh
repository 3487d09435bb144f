// Threads, barriers, shuffles and the few PTX instructions that the kernels use.
//
// Contract: everything here is called by all threads of its scope together, in the same order: a
// barrier by the block, sync_warp, shuffles, load_matrices and multiply by the 32 lanes of a warp.
// Shared-memory addresses of load_matrices and copy_async are 16-byte aligned.
// Needs sm_80 for bfloat16 and sm_89 for e4m3. Without nvcc the same names are the emulation's
// (csrc/emulation), so that the bodies of the kernels run on a CPU.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define DDTREE_DEVICE __device__ __forceinline__
#define DDTREE_UNROLL _Pragma("unroll")
#else
#define DDTREE_DEVICE inline
#define DDTREE_UNROLL
#include "emulation/machine.h"
#endif

#include <cmath>

namespace ddtree {

constexpr int kWarp = 32;

// Storage types: bits only, so that no framework's or toolkit's type enters an interface.
struct Bf16 {
  uint16_t bits;
};
struct E4m3 {
  uint8_t bits;
};

#ifdef __CUDACC__

DDTREE_DEVICE int thread_index() { return threadIdx.x; }
DDTREE_DEVICE int block_index(int axis) {
  return axis == 0 ? blockIdx.x : axis == 1 ? blockIdx.y : blockIdx.z;
}
DDTREE_DEVICE int grid_size(int axis) {
  return axis == 0 ? gridDim.x : axis == 1 ? gridDim.y : gridDim.z;
}
DDTREE_DEVICE void sync_block() { __syncthreads(); }
DDTREE_DEVICE void sync_warp() { __syncwarp(); }
DDTREE_DEVICE void fence_device() { __threadfence(); }
DDTREE_DEVICE float shuffle_xor(float value, int lanes) {
  return __shfl_xor_sync(0xffffffffu, value, lanes);
}
DDTREE_DEVICE int count_arrival(int32_t* counter) { return atomicAdd(counter, 1); }
// Past the L1 cache, which is not coherent between the blocks of a grid.
DDTREE_DEVICE float load_uncached(const float* at) { return __ldcg(at); }

DDTREE_DEVICE uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}
// 16 bytes from global to shared memory; zeros where not `valid`.
DDTREE_DEVICE void copy_async(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}
DDTREE_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending of this thread's groups are still in flight.
template <int kPending>
DDTREE_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8x8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8.
DDTREE_DEVICE void load_matrices(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
DDTREE_DEVICE void load_matrices_transposed(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
// acc[16x8] += a[16x16] b[16x8], bfloat16 with float32 sums.
DDTREE_DEVICE void multiply(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DDTREE_DEVICE float as_float(uint32_t bits) { return __uint_as_float(bits); }
DDTREE_DEVICE uint32_t as_bits(float value) { return __float_as_uint(value); }
// Two e4m3 values to two bfloat16 values; exact, as every e4m3 is a bfloat16.
DDTREE_DEVICE uint32_t widen_e4m3(uint16_t pair) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
  float low, high;
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(low), "=f"(high)
      : "r"(halves));
  return (as_bits(low) >> 16) | (as_bits(high) & 0xffff0000u);
}
DDTREE_DEVICE float exp2_fast(float x) { return exp2f(x); }
DDTREE_DEVICE int lowest_bit(uint64_t bits) { return __ffsll(static_cast<long long>(bits)) - 1; }

#else

using namespace emulation;  // NOLINT: the same names

#endif

DDTREE_DEVICE float to_float(float value) { return value; }
DDTREE_DEVICE float to_float(Bf16 value) { return as_float(uint32_t(value.bits) << 16); }
template <class T>
DDTREE_DEVICE T from_float(float value);
template <>
DDTREE_DEVICE float from_float<float>(float value) {
  return value;
}
// To nearest, ties to even; NaN stays NaN.
template <>
DDTREE_DEVICE Bf16 from_float<Bf16>(float value) {
  uint32_t bits = as_bits(value);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return Bf16{static_cast<uint16_t>(value == value ? rounded : 0x7fffu)};
}

DDTREE_DEVICE float warp_sum(float value) {
  DDTREE_UNROLL
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) value += shuffle_xor(value, lanes);
  return value;
}
DDTREE_DEVICE float warp_max(float value) {
  DDTREE_UNROLL
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    value = fmaxf(value, shuffle_xor(value, lanes));
  }
  return value;
}

}  // namespace ddtree
