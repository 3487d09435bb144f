// Host side of a kernel: its entry point and its launch, and the functions that Python calls.
//
// Contract: DDTREE_EXPORT(name, kernel) makes the device entry `name`, and `int ddtree_name(const
// void* params, void* stream)` with C linkage, which launches it and returns a cudaError_t; where
// the headers of tvm-ffi are at hand, also `name(int params, int stream)` for tvm-ffi, which raises
// RuntimeError. `params` points to the kernel's Params on the host. Blocks have kThreads threads,
// at most one block a processor is planned for. A launch allocates nothing, waits for nothing and
// reads no device memory: graphs may capture it.
#pragma once

#include <cuda_runtime.h>

#include "ddtree/kernels.cuh"

#if __has_include(<tvm/ffi/function.h>)
#include <tvm/ffi/function.h>
namespace ddtree {
inline void raise_from(const char* name, int error) {
  if (error != cudaSuccess) {
    TVM_FFI_THROW(RuntimeError) << name << ": "
                                << cudaGetErrorString(static_cast<cudaError_t>(error));
  }
}
}  // namespace ddtree
#define DDTREE_TVM_EXPORT(name)                                                    \
  static void ddtree_raising_##name(int64_t params, int64_t stream) {              \
    ddtree::raise_from(#name, ddtree_##name(reinterpret_cast<const void*>(params), \
                                            reinterpret_cast<void*>(stream)));     \
  }                                                                                \
  TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, ddtree_raising_##name);
#else
#define DDTREE_TVM_EXPORT(name)
#endif

namespace ddtree {

template <class Kernel>
int launch(void (*entry)(typename Kernel::Params), const void* address, void* stream) {
  const auto& params = *static_cast<const typename Kernel::Params*>(address);
  const Grid wanted = Kernel::grid(params);
  const dim3 grid(wanted.size[0], wanted.size[1], wanted.size[2]);
  cudaError_t error = cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           Kernel::kSharedBytes);
  if (error != cudaSuccess) return error;
  entry<<<grid, Kernel::kThreads, Kernel::kSharedBytes, static_cast<cudaStream_t>(stream)>>>(
      params);
  return cudaGetLastError();
}

}  // namespace ddtree

#define DDTREE_EXPORT(name, ...)                                         \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__::kThreads, 1) \
      name(const __grid_constant__ __VA_ARGS__::Params params) {         \
    extern __shared__ __align__(128) char shared[];                      \
    __VA_ARGS__::run(params, shared);                                    \
  }                                                                      \
  extern "C" int ddtree_##name(const void* params, void* stream) {       \
    return ddtree::launch<__VA_ARGS__>(name, params, stream);            \
  }                                                                      \
  DDTREE_TVM_EXPORT(name)
