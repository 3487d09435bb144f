// The kernels on the emulated machine: one C function a variant, called through ctypes.
#include "ddtree/kernels.cuh"

namespace {

template <class Kernel>
void emulate(const typename Kernel::Params* params, int order, int eager_copies, unsigned seed) {
  using namespace ddtree::emulation;
  Machine machine({static_cast<Order>(order), eager_copies != 0, seed});
  machine.launch(Kernel::grid(*params).size, Kernel::kThreads, Kernel::kSharedBytes,
                 [&](char* shared) { Kernel::run(*params, shared); });
}

}  // namespace

#define DDTREE_EMULATE(name, ...)                                                                 \
  extern "C" void ddtree_##name(const void* params, int order, int eager_copies, unsigned seed) { \
    emulate<__VA_ARGS__>(static_cast<const __VA_ARGS__::Params*>(params), order, eager_copies,    \
                         seed);                                                                   \
  }                                                                                               \
  extern "C" int ddtree_##name##_shared_bytes() { return __VA_ARGS__::kSharedBytes; }
#ifndef DDTREE_EMULATED_KERNELS
#define DDTREE_EMULATED_KERNELS(X) DDTREE_MLA_KERNELS(X) DDTREE_GATED_DELTA_KERNELS(X)
#endif
DDTREE_EMULATED_KERNELS(DDTREE_EMULATE)
