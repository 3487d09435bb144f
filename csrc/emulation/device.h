// The names of ddtree/device.cuh on the emulated machine. Layouts of matrix fragments follow the
// PTX ISA: lane l holds row l / 4 and columns 2 (l % 4), 2 (l % 4) + 1 of an 8x8 matrix.
#pragma once

namespace ddtree::emulation {

inline Machine& machine() { return *Machine::current(); }
inline int thread_index() { return machine().thread(); }
inline int block_index(int axis) { return machine().block(axis); }
inline int grid_size(int axis) { return machine().grid(axis); }
inline void sync_block() { machine().sync_block(); }
inline void sync_warp() { machine().warp(nullptr, nullptr); }
inline void fence_device() {}
inline int count_arrival(int32_t* counter) { return (*counter)++; }
inline float load_uncached(const float* at) { return *at; }

inline float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline uint32_t as_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float exp2_fast(float x) { return std::exp2(x); }
inline int lowest_bit(uint64_t bits) { return __builtin_ctzll(bits); }
using std::fmaxf;

inline float shuffle_xor(float value, int lanes) {
  struct Lane {
    float value;
    int lanes;
  } mine{value, lanes};
  machine().warp(
      [](Machine::Lanes all) {
        float values[32];
        for (int i = 0; i < 32; ++i) values[i] = static_cast<Lane*>(all[i])->value;
        for (int i = 0; i < 32; ++i) {
          Lane* lane = static_cast<Lane*>(all[i]);
          lane->value = values[i ^ lane->lanes];
        }
      },
      &mine);
  return mine.value;
}

inline void copy_async(void* shared, const void* global, bool valid) {
  machine().copy(shared, global, valid);
}
inline void commit_copies() { machine().commit_copies(); }
template <int kPending>
inline void wait_copies() {
  machine().wait_copies(kPending);
}

struct MatrixLane {
  uint32_t* to;
  const uint16_t* row;
};
inline uint32_t pair(uint16_t low, uint16_t high) { return low | uint32_t(high) << 16; }
inline void load_matrices(uint32_t (&to)[4], const void* row) {
  MatrixLane mine{to, static_cast<const uint16_t*>(row)};
  machine().warp(
      [](Machine::Lanes all) {
        for (int lane = 0; lane < 32; ++lane) {
          for (int matrix = 0; matrix < 4; ++matrix) {
            const uint16_t* from = static_cast<MatrixLane*>(all[matrix * 8 + lane / 4])->row;
            const int column = 2 * (lane % 4);
            static_cast<MatrixLane*>(all[lane])->to[matrix] = pair(from[column], from[column + 1]);
          }
        }
      },
      &mine);
}
inline void load_matrices_transposed(uint32_t (&to)[4], const void* row) {
  MatrixLane mine{to, static_cast<const uint16_t*>(row)};
  machine().warp(
      [](Machine::Lanes all) {
        for (int lane = 0; lane < 32; ++lane) {
          for (int matrix = 0; matrix < 4; ++matrix) {
            const int first = matrix * 8 + 2 * (lane % 4), column = lane / 4;
            static_cast<MatrixLane*>(all[lane])->to[matrix] =
                pair(static_cast<MatrixLane*>(all[first])->row[column],
                     static_cast<MatrixLane*>(all[first + 1])->row[column]);
          }
        }
      },
      &mine);
}

struct MultiplyLane {
  float* acc;
  const uint32_t* a;
  uint32_t b[2];
};
inline float half_of(uint32_t packed, int high) {
  return as_float(high ? packed & 0xffff0000u : packed << 16);
}
inline void multiply(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  MultiplyLane mine{acc, a, {b0, b1}};
  machine().warp(
      [](Machine::Lanes all) {
        float left[16][16], right[16][8];
        for (int lane = 0; lane < 32; ++lane) {
          const auto& from = *static_cast<MultiplyLane*>(all[lane]);
          const int group = lane / 4, column = 2 * (lane % 4);
          for (int high = 0; high < 2; ++high) {
            for (int reg = 0; reg < 4; ++reg) {
              left[group + 8 * (reg % 2)][column + high + 8 * (reg / 2)] =
                  half_of(from.a[reg], high);
            }
            for (int reg = 0; reg < 2; ++reg) {
              right[column + high + 8 * reg][group] = half_of(from.b[reg], high);
            }
          }
        }
        for (int lane = 0; lane < 32; ++lane) {
          for (int reg = 0; reg < 4; ++reg) {
            const int row = lane / 4 + 8 * (reg / 2), column = 2 * (lane % 4) + reg % 2;
            float sum = 0;
            for (int k = 0; k < 16; ++k) sum += left[row][k] * right[k][column];
            static_cast<MultiplyLane*>(all[lane])->acc[reg] += sum;
          }
        }
      },
      &mine);
}

inline uint32_t widen_e4m3(uint16_t two) {
  uint32_t packed = 0;
  for (int high = 0; high < 2; ++high) {
    const uint32_t byte = (two >> (8 * high)) & 0xff;
    const int exponent = (byte >> 3) & 0xf, mantissa = byte & 7;
    float value = exponent == 0 ? std::ldexp(float(mantissa), -9)
                                : std::ldexp(float(8 + mantissa), exponent - 10);
    if (exponent == 15 && mantissa == 7) value = std::nanf("");
    if (byte & 0x80) value = -value;
    packed |= (as_bits(value) >> 16) << (16 * high);
  }
  return packed;
}

}  // namespace ddtree::emulation
