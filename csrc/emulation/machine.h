// A GPU small enough to read: blocks of threads on a CPU, so that the bodies of the kernels in
// csrc/include run where there is no GPU.
//
// Every thread of a block is a fiber. A fiber runs until it waits at a barrier or a warp
// operation; which waiting fiber runs next is the schedule: in order, in reverse, or shuffled. The
// result of a correct kernel is the same under all of them, a missing barrier shows under some.
// Warp operations run for all lanes at once when the last lane arrives, as in hardware. An
// asynchronous copy takes place either when it is issued or as late as its wait allows, with NaN in
// its place until then; a kernel must be right either way. Shared memory starts as NaN.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace ddtree::emulation {

enum class Order { kForward, kReverse, kShuffled };
struct Schedule {
  Order order = Order::kForward;
  bool eager_copies = false;
  unsigned seed = 0;
};

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "emulation: %s\n", what);
  std::abort();
}

class Machine {
 public:
  enum class Wait { kNone, kBlock, kWarp, kDone };
  // What the lanes of a warp hand to an operation that all of them perform.
  using Lanes = void* (&)[32];
  using Operation = void (*)(Lanes);

  explicit Machine(Schedule schedule) : schedule_(schedule), random_(schedule.seed) {}

  static Machine*& current() {
    static Machine* machine = nullptr;
    return machine;
  }

  // Runs `body(shared)` for every block of the grid, in the order of the schedule.
  template <class Body>
  void launch(const int (&grid)[3], int threads, size_t shared_bytes, const Body& body) {
    if (threads % 32 != 0) fail("a block must be whole warps");
    current() = this;
    body_ = &body;
    enter_ = &Machine::enter<Body>;
    std::vector<int> blocks = arranged(grid[0] * grid[1] * grid[2]);
    for (int axis = 0; axis < 3; ++axis) grid_[axis] = grid[axis];
    for (int block : blocks) {
      block_[0] = block % grid[0];
      block_[1] = block / grid[0] % grid[1];
      block_[2] = block / grid[0] / grid[1];
      // Exactly as large as declared: whatever lies beyond is the allocator's.
      std::vector<char> storage(shared_bytes + 128);
      auto address = (reinterpret_cast<uintptr_t>(storage.data()) + 127) & ~uintptr_t{127};
      shared_ = reinterpret_cast<char*>(address);
      std::memset(shared_, 0xff, shared_bytes);
      run_block(threads);
    }
    current() = nullptr;
  }

  int thread() const { return running_; }
  int block(int axis) const { return block_[axis]; }
  int grid(int axis) const { return grid_[axis]; }

  void sync_block() { wait(Wait::kBlock); }
  void warp(Operation operation, void* lane) {
    Fiber& fiber = fibers_[running_];
    fiber.operation = operation;
    fiber.lane = lane;
    wait(Wait::kWarp);
  }

  void copy(void* to, const void* from, bool valid) {
    if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16 != 0) {
      fail("copy_async: an address is not 16-byte aligned");
    }
    Copy copy{to, valid ? from : nullptr};
    if (schedule_.eager_copies) {
      copy.perform();
    } else {
      std::memset(to, 0xff, 16);
      fibers_[running_].open.push_back(copy);
    }
  }
  void commit_copies() {
    Fiber& fiber = fibers_[running_];
    fiber.groups.push_back(std::move(fiber.open));
    fiber.open.clear();
  }
  void wait_copies(size_t pending) {
    auto& groups = fibers_[running_].groups;
    while (groups.size() > pending) {
      for (const Copy& copy : groups.front()) copy.perform();
      groups.erase(groups.begin());
    }
  }

 private:
  static constexpr size_t kStack = 64 << 10;

  struct Copy {
    void* to;
    const void* from;
    void perform() const {
      if (from != nullptr) {
        std::memcpy(to, from, 16);
      } else {
        std::memset(to, 0, 16);
      }
    }
  };
  struct Fiber {
    ucontext_t start;
    jmp_buf resume;
    std::vector<char> stack;
    bool started = false;
    Wait wait = Wait::kNone;
    Operation operation = nullptr;
    void* lane = nullptr;
    std::vector<Copy> open;
    std::vector<std::vector<Copy>> groups;
  };

  std::vector<int> arranged(int count) {
    std::vector<int> order(count);
    for (int i = 0; i < count; ++i) {
      order[i] = schedule_.order == Order::kReverse ? count - 1 - i : i;
    }
    if (schedule_.order == Order::kShuffled) {
      for (int i = count - 1; i > 0; --i) std::swap(order[i], order[next_random() % (i + 1)]);
    }
    return order;
  }

  // Knuth's MMIX generator; its upper bits.
  uint32_t next_random() {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return random_ >> 33;
  }

  void run_block(int threads) {
    fibers_.resize(threads);
    for (Fiber& fiber : fibers_) {
      fiber.stack.resize(kStack);
      fiber.started = false;
      fiber.wait = Wait::kNone;
      fiber.open.clear();
      fiber.groups.clear();
      getcontext(&fiber.start);
      fiber.start.uc_stack.ss_sp = fiber.stack.data();
      fiber.start.uc_stack.ss_size = kStack;
      fiber.start.uc_link = nullptr;
      makecontext(&fiber.start, enter_, 0);
    }
    for (;;) {
      bool ran = false;
      for (int warp : arranged(threads / 32)) {
        // As far as it gets without the others: warps are as far apart as barriers let them be.
        while (run_warp(warp)) ran = true;
      }
      if (!ran && !release_block()) break;
    }
  }

  bool run_warp(int warp) {
    bool ran = false;
    for (int lane : arranged(32)) {
      const int thread = warp * 32 + lane;
      if (fibers_[thread].wait != Wait::kNone) continue;
      resume(thread);
      ran = true;
    }
    release_warp(warp);
    return ran;
  }

  void release_warp(int warp) {
    Fiber* lanes = &fibers_[warp * 32];
    void* data[32];
    for (int i = 0; i < 32; ++i) {
      if (lanes[i].wait != Wait::kWarp) return;
      if (lanes[i].operation != lanes[0].operation) fail("lanes of a warp at different operations");
      data[i] = lanes[i].lane;
    }
    if (lanes[0].operation != nullptr) lanes[0].operation(data);
    for (int i = 0; i < 32; ++i) lanes[i].wait = Wait::kNone;
  }

  // Called when no thread can run: either all wait at a block barrier, or all have ended.
  bool release_block() {
    size_t waiting = 0, done = 0;
    for (Fiber& fiber : fibers_) {
      waiting += fiber.wait == Wait::kBlock;
      done += fiber.wait == Wait::kDone;
    }
    if (done == fibers_.size()) return false;
    if (waiting != fibers_.size()) fail("a barrier that not all threads of the block reach");
    for (Fiber& fiber : fibers_) fiber.wait = Wait::kNone;
    return true;
  }

  void resume(int thread) {
    running_ = thread;
    Fiber& fiber = fibers_[thread];
    if (_setjmp(scheduler_) != 0) return;
    if (fiber.started) _longjmp(fiber.resume, 1);
    fiber.started = true;
    setcontext(&fiber.start);
  }
  void wait(Wait wait) {
    Fiber& fiber = fibers_[running_];
    fiber.wait = wait;
    if (_setjmp(fiber.resume) == 0) _longjmp(scheduler_, 1);
  }
  template <class Body>
  static void enter() {
    Machine& machine = *current();
    (*static_cast<const Body*>(machine.body_))(machine.shared_);
    machine.fibers_[machine.running_].wait = Wait::kDone;
    _longjmp(machine.scheduler_, 1);
  }

  Schedule schedule_;
  uint64_t random_;
  std::vector<Fiber> fibers_;
  jmp_buf scheduler_;
  const void* body_ = nullptr;
  void (*enter_)() = nullptr;
  char* shared_ = nullptr;
  int running_ = 0;
  int block_[3] = {}, grid_[3] = {};
};

}  // namespace ddtree::emulation

#include "emulation/device.h"
