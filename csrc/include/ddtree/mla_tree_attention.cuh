// Attention of draft-tree nodes over a paged latent cache (MLA, absorbed form), one launch a layer.
//
// Contract
//   q          bfloat16 [bs, nodes, heads, 576], contiguous, 16-byte aligned: 512 columns in the
//              latent space, 64 of the rotary part.
//   cache      bfloat16 or e4m3 [slots, 576]; cache_stride in values, rows 16-byte aligned. The
//              value of a position is the first 512 columns of its row.
//   table      int32 [.., table_stride], slot of each position of a request: its prefix, then its
//              nodes. Slots of one page are consecutive; page_size is a power of two.
//   request_rows, prefix_lens   int64 [bs].
//   ancestors  64-bit words [bs, nodes, words], words = ceil(nodes / 64) in 1..4.
//   out        bfloat16 [bs, nodes, heads, 512]; lse float32 [bs, nodes, heads], natural logarithm.
//   partial    float32 [bs, splits + 1, nodes * heads, 512], partial_lse the same without 512.
//   arrived    int32 [bs, tiles], all 0; the kernel leaves them 0.
//   min_keys   of a split, so that a short prefix leaves some splits empty; at least 1.
//   Every node sees the prefix and the nodes whose bit its words hold, so at least itself.
// Launch: grid (tiles, splits + 1, bs), tiles = ceil(nodes * heads / kRows); 256 threads;
//   MlaTile::kSharedBytes of dynamic shared memory, at most 101,376; one block a processor.
#pragma once

#include "ddtree/device.cuh"

namespace ddtree {

struct MlaParams {
  const void* q;
  const void* cache;
  const int32_t* table;
  const int64_t* request_rows;
  const int64_t* prefix_lens;
  const uint64_t* ancestors;
  void* out;
  float* lse;
  float* partial;
  float* partial_lse;
  int32_t* arrived;
  int64_t table_stride;
  int64_t cache_stride;
  float qk_scale;
  float v_scale;
  int32_t bs;
  int32_t nodes;
  int32_t heads;
  int32_t words;
  int32_t splits;
  int32_t page_size;
  int32_t min_keys;
  int32_t reserved;
};

// How a block lays out its shared memory. Rows are padded by 16 bytes: eight rows of a matrix then
// lie in different banks.
template <int kRows_, int kKeys_, int kStages_, class Cache_>
struct MlaTile {
  using Cache = Cache_;
  static constexpr int kRows = kRows_, kKeys = kKeys_, kStages = kStages_;
  static constexpr int kLatent = 512, kDim = 576, kThreads = 256, kWarps = kThreads / kWarp;
  static constexpr bool kWiden = sizeof(Cache) == 1;
  static constexpr int kPitch = kDim + 8;                        // of q and k, in bfloat16
  static constexpr int kStagePitch = kDim + 16 / sizeof(Cache);  // of a stage, in values
  static constexpr int kProbPitch = kKeys + 8;
  static constexpr int kScoreTiles = (kRows / 16) * (kKeys / 8);
  static constexpr int kParts = kWarps / kScoreTiles;  // of the sum over 576 columns
  static_assert(kScoreTiles * kParts == kWarps && (kDim / 32) % kParts == 0);

  static constexpr int kStageBytes = kKeys * kStagePitch * sizeof(Cache);
  static constexpr int kQ = 0;
  static constexpr int kStage = kQ + kRows * kPitch * 2;
  static constexpr int kWidened = kStage + kStages * kStageBytes;
  static constexpr int kScores = kWidened + (kWiden ? kKeys * kPitch * 2 : 0);
  static constexpr int kProbs = kScores + kParts * kRows * kKeys * 4;
  static constexpr int kRowStats = kProbs + kRows * kProbPitch * 2;
  static constexpr int kSharedBytes = kRowStats + 3 * kRows * 4 + 16;
  static_assert(kSharedBytes <= 101376, "more shared memory than a block of sm_120 has");
};

template <class Tile>
class MlaTreeAttention {
  using Cache = typename Tile::Cache;
  static constexpr int kRows = Tile::kRows, kKeys = Tile::kKeys, kThreads = Tile::kThreads;
  static constexpr int kColumns = Tile::kLatent / Tile::kWarps;  // of the output, a warp's own

 public:
  DDTREE_DEVICE MlaTreeAttention(const MlaParams& params, char* shared)
      : p(params),
        shared_(shared),
        thread(thread_index()),
        lane(thread % kWarp),
        warp(thread / kWarp),
        tile(block_index(0)),
        split(block_index(1)),
        request(block_index(2)),
        rows(params.nodes * params.heads) {}

  DDTREE_DEVICE void run() {
    choose_keys();
    load_queries();
    DDTREE_UNROLL
    for (int i = 0; i < Tile::kStages - 1; ++i) load_stage(i);
    if (thread < kRows) {
      largest()[thread] = -INFINITY;
      total()[thread] = 0;
    }
    float acc[kRows / 16][kColumns / 8][4] = {};
    const int count = (end - begin + kKeys - 1) / kKeys;
    for (int i = 0; i < count; ++i) {
      wait_copies<Tile::kStages - 2>();
      sync_block();  // stage i has arrived for all, and stage i - 1 is no longer read
      load_stage(i + Tile::kStages - 1);
      const Bf16* keys = keys_of(i);
      score(keys);
      sync_block();
      weigh(i);
      sync_block();
      accumulate(keys, acc);
    }
    wait_copies<0>();
    sync_block();  // also for a split without keys: the statistics are there
    store_partial(acc);
    if (arrives_last()) merge();
  }

 private:
  // The keys of this split: a part of the prefix, or for the last split the tree.
  DDTREE_DEVICE void choose_keys() {
    prefix = static_cast<int>(p.prefix_lens[request]);
    in_tree = split == p.splits;
    int chunk = (prefix + p.splits - 1) / p.splits;
    chunk = chunk < p.min_keys ? p.min_keys : chunk;
    chunk = (chunk + kKeys - 1) / kKeys * kKeys;
    begin = in_tree ? prefix : split * chunk;
    end = in_tree ? prefix + p.nodes : begin + chunk < prefix ? begin + chunk : prefix;
    if (end < begin) end = begin;
    table = p.table + p.request_rows[request] * p.table_stride;
  }

  DDTREE_DEVICE void load_queries() {
    constexpr int kChunks = Tile::kDim / 8;
    const Bf16* q = static_cast<const Bf16*>(p.q) + int64_t(request) * rows * Tile::kDim;
    for (int i = thread; i < kRows * kChunks; i += kThreads) {
      const int row = i / kChunks, column = i % kChunks * 8;
      const bool live = tile * kRows + row < rows;
      const int64_t from = live ? int64_t(tile * kRows + row) * Tile::kDim + column : 0;
      copy_async(queries() + row * Tile::kPitch + column, q + from, live);
    }
  }

  // One group of copies a tile of keys, an empty one past the end: waiting counts groups.
  DDTREE_DEVICE void load_stage(int i) {
    constexpr int kChunk = 16 / sizeof(Cache), kChunks = Tile::kDim / kChunk;
    const int first = begin + i * kKeys;
    if (first < end) {
      const Cache* cache = static_cast<const Cache*>(p.cache);
      Cache* to = stage(i);
      for (int j = thread; j < kKeys * kChunks; j += kThreads) {
        const int key = j / kChunks, column = j % kChunks * kChunk;
        const int position = first + key;
        const bool live = position < end;
        int64_t from = 0;
        if (live) {
          const int in_page = position & (p.page_size - 1);
          from = int64_t(table[position - in_page] + in_page) * p.cache_stride + column;
        }
        copy_async(to + key * Tile::kStagePitch + column, cache + from, live);
      }
    }
    commit_copies();
  }

  // The tile as bfloat16: where it landed, or widened from e4m3.
  DDTREE_DEVICE const Bf16* keys_of(int i) {
    if constexpr (!Tile::kWiden) {
      return reinterpret_cast<const Bf16*>(stage(i));
    } else {
      constexpr int kPairs = Tile::kDim / 2;
      const Cache* from = stage(i);
      Bf16* to = reinterpret_cast<Bf16*>(shared_ + Tile::kWidened);
      for (int j = thread; j < kKeys * kPairs; j += kThreads) {
        const int key = j / kPairs, column = j % kPairs * 2;
        const auto* two =
            reinterpret_cast<const uint16_t*>(from + key * Tile::kStagePitch + column);
        *reinterpret_cast<uint32_t*>(to + key * Tile::kPitch + column) = widen_e4m3(*two);
      }
      sync_block();
      return to;
    }
  }

  // A warp sums its part of the 576 columns for one 16 x 8 tile of scores.
  DDTREE_DEVICE void score(const Bf16* keys) {
    constexpr int kSteps = Tile::kDim / 32 / Tile::kParts;
    const int score_tile = warp % Tile::kScoreTiles, part = warp / Tile::kScoreTiles;
    const int row = score_tile / (kKeys / 8) * 16, key = score_tile % (kKeys / 8) * 8;
    const Bf16* a_at = queries() + (row + lane % 16) * Tile::kPitch + lane / 16 * 8;
    const Bf16* b_at = keys + (key + lane % 8) * Tile::kPitch + lane / 8 * 8;
    float sum[4] = {};
    DDTREE_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      const int column = (part * kSteps + i) * 32;
      uint32_t a[4], b[4];
      load_matrices(b, b_at + column);
      load_matrices(a, a_at + column);
      multiply(sum, a, b[0], b[1]);
      load_matrices(a, a_at + column + 16);
      multiply(sum, a, b[2], b[3]);
    }
    float* to = scores() + (part * kRows + row + lane / 4) * kKeys + key + lane % 4 * 2;
    to[0] = sum[0];
    to[1] = sum[1];
    to[8 * kKeys] = sum[2];
    to[8 * kKeys + 1] = sum[3];
  }

  // Softmax so far, one row a warp at a time. Scores are in units of log 2.
  DDTREE_DEVICE void weigh(int i) {
    constexpr float kLog2E = 1.44269504f;
    const int position = begin + i * kKeys + lane;
    for (int row = warp; row < kRows; row += Tile::kWarps) {
      float value = -INFINITY;
      if (lane < kKeys && position < end && visible(row, position - prefix)) {
        value = 0;
        for (int part = 0; part < Tile::kParts; ++part) {
          value += scores()[(part * kRows + row) * kKeys + lane];
        }
        value *= p.qk_scale * kLog2E;
      }
      const float before = largest()[row];
      const float larger = fmaxf(before, warp_max(value));
      const float shift = larger == -INFINITY ? 0 : larger;  // a row may have seen nothing yet
      const float prob = exp2_fast(value - shift);
      const float sum = warp_sum(prob);
      if (lane < kKeys) probs()[row * Tile::kProbPitch + lane] = from_float<Bf16>(prob);
      sync_warp();  // all lanes have read what lane 0 replaces
      if (lane == 0) {
        const float keep = exp2_fast(before - shift);
        largest()[row] = larger;
        kept()[row] = keep;
        total()[row] = total()[row] * keep + sum;
      }
    }
  }

  DDTREE_DEVICE bool visible(int row, int other) const {
    if (!in_tree) return true;
    const int index = tile * kRows + row;
    if (index >= rows) return false;
    const int64_t node = int64_t(request) * p.nodes + index / p.heads;
    return (p.ancestors[node * p.words + other / 64] >> (other % 64)) & 1;
  }

  // acc = acc * kept + probs x values, the values being the first columns of the keys' own tile.
  DDTREE_DEVICE void accumulate(const Bf16* keys, float (&acc)[kRows / 16][kColumns / 8][4]) {
    const Bf16* v_at = keys + lane % 16 * Tile::kPitch + warp * kColumns + lane / 16 * 8;
    const Bf16* p_at = probs() + lane % 16 * Tile::kProbPitch + lane / 16 * 8;
    DDTREE_UNROLL
    for (int m = 0; m < kRows / 16; ++m) {
      const float low = kept()[m * 16 + lane / 4], high = kept()[m * 16 + lane / 4 + 8];
      DDTREE_UNROLL
      for (int n = 0; n < kColumns / 8; ++n) {
        acc[m][n][0] *= low;
        acc[m][n][1] *= low;
        acc[m][n][2] *= high;
        acc[m][n][3] *= high;
      }
    }
    DDTREE_UNROLL
    for (int k = 0; k < kKeys; k += 16) {
      uint32_t a[kRows / 16][4];
      DDTREE_UNROLL
      for (int m = 0; m < kRows / 16; ++m) {
        load_matrices(a[m], p_at + m * 16 * Tile::kProbPitch + k);
      }
      DDTREE_UNROLL
      for (int n = 0; n < kColumns / 8; n += 2) {
        uint32_t b[4];
        load_matrices_transposed(b, v_at + k * Tile::kPitch + n * 8);
        DDTREE_UNROLL
        for (int m = 0; m < kRows / 16; ++m) {
          multiply(acc[m][n], a[m], b[0], b[1]);
          multiply(acc[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  DDTREE_DEVICE int64_t partial_row(int part, int row) const {
    return (int64_t(request) * (p.splits + 1) + part) * rows + tile * kRows + row;
  }

  DDTREE_DEVICE void store_partial(const float (&acc)[kRows / 16][kColumns / 8][4]) {
    DDTREE_UNROLL
    for (int m = 0; m < kRows / 16; ++m) {
      DDTREE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = m * 16 + half * 8 + lane / 4;
        const float sum = total()[row];
        if (tile * kRows + row >= rows || sum == 0) continue;
        const float scale = 1 / sum;
        float* to =
            p.partial + partial_row(split, row) * Tile::kLatent + warp * kColumns + lane % 4 * 2;
        DDTREE_UNROLL
        for (int n = 0; n < kColumns / 8; ++n) {
          to[n * 8] = acc[m][n][half * 2] * scale;
          to[n * 8 + 1] = acc[m][n][half * 2 + 1] * scale;
        }
      }
    }
    if (thread < kRows && tile * kRows + thread < rows) {
      const float sum = total()[thread];
      p.partial_lse[partial_row(split, thread)] =
          sum == 0 ? -INFINITY : largest()[thread] + log2f(sum);
    }
  }

  // Whether all other splits of this tile have stored their results.
  DDTREE_DEVICE bool arrives_last() {
    int* flag = reinterpret_cast<int*>(shared_ + Tile::kRowStats + 3 * kRows * 4);
    fence_device();
    sync_block();
    if (thread == 0) {
      int32_t* counter = p.arrived + request * grid_size(0) + tile;
      *flag = count_arrival(counter) == p.splits;
      if (*flag) *counter = 0;  // for the next launch
    }
    sync_block();
    const bool last = *flag != 0;
    if (last) fence_device();
    return last;
  }

  // Results of all splits, weighed by their log-sum-exp; a row a warp.
  DDTREE_DEVICE void merge() {
    constexpr float kLn2 = 0.693147181f;
    for (int row = warp; row < kRows && tile * kRows + row < rows; row += Tile::kWarps) {
      float top = -INFINITY, sum = 0;
      for (int i = 0; i <= p.splits; ++i) {
        top = fmaxf(top, load_uncached(p.partial_lse + partial_row(i, row)));
      }
      float merged[Tile::kLatent / kWarp] = {};
      for (int i = 0; i <= p.splits; ++i) {
        const float part_lse = load_uncached(p.partial_lse + partial_row(i, row));
        if (part_lse == -INFINITY) continue;  // it stored nothing
        const float weight = exp2_fast(part_lse - top);
        sum += weight;
        const float* from = p.partial + partial_row(i, row) * Tile::kLatent + lane;
        DDTREE_UNROLL
        for (int j = 0; j < Tile::kLatent / kWarp; ++j) {
          merged[j] += weight * load_uncached(from + j * kWarp);
        }
      }
      const int64_t to = int64_t(request) * rows + tile * kRows + row;
      Bf16* out = static_cast<Bf16*>(p.out) + to * Tile::kLatent + lane;
      const float scale = p.v_scale / sum;
      DDTREE_UNROLL
      for (int j = 0; j < Tile::kLatent / kWarp; ++j) {
        out[j * kWarp] = from_float<Bf16>(merged[j] * scale);
      }
      if (lane == 0) p.lse[to] = (top + log2f(sum)) * kLn2;
    }
  }

  DDTREE_DEVICE Bf16* queries() const { return reinterpret_cast<Bf16*>(shared_ + Tile::kQ); }
  DDTREE_DEVICE Cache* stage(int i) const {
    return reinterpret_cast<Cache*>(shared_ + Tile::kStage + i % Tile::kStages * Tile::kStageBytes);
  }
  DDTREE_DEVICE float* scores() const { return reinterpret_cast<float*>(shared_ + Tile::kScores); }
  DDTREE_DEVICE Bf16* probs() const { return reinterpret_cast<Bf16*>(shared_ + Tile::kProbs); }
  DDTREE_DEVICE float* row_stats() const {
    return reinterpret_cast<float*>(shared_ + Tile::kRowStats);
  }
  DDTREE_DEVICE float* largest() const { return row_stats(); }
  DDTREE_DEVICE float* total() const { return row_stats() + kRows; }
  DDTREE_DEVICE float* kept() const { return row_stats() + 2 * kRows; }

  const MlaParams& p;
  char* shared_;
  const int thread, lane, warp, tile, split, request, rows;
  const int32_t* table = nullptr;
  int prefix = 0, begin = 0, end = 0;
  bool in_tree = false;
};

// Tiles that the launcher chooses from: few rows with wide tiles of keys, or more rows.
template <class Cache>
using MlaNarrow = MlaTile<16, 32, 2, Cache>;
template <class Cache>
using MlaWide = MlaTile<32, 16, 3, Cache>;

}  // namespace ddtree
