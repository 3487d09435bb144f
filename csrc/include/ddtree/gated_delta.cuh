// The gated delta rule over a draft tree: verification of one layer, commit of all layers.
//
// Contract (model type: bfloat16 or float32; state type likewise)
//   x          model type [bs, nodes, C], C = 2 k_heads kDim + v_heads v_dim: queries, keys, values
//              before the convolution; strides in values, consecutive along C.
//   a, b       model type [bs, nodes, v_heads], strides in values, consecutive along v_heads.
//   weight     model type [C, taps]; bias model type [C] or null; taps in 2..8, the newest last.
//   a_log, dt_bias   float32 [v_heads].
//   states     state type [slots, v_heads, v_dim, kDim]; windows model type [slots, C, taps - 1].
//   slots      int64 [bs]; a negative slot reads as zeros.
//   parent     int32 [bs, nodes], -1 at the root and at padding, else less than the node.
//   ancestors  64-bit words [bs, nodes, words]; verification takes one word (nodes <= 64), commit
//              up to four.
//   out        model type [bs, nodes, v_heads, v_dim].
//   keys, updates, log_decay   float32 [bs, nodes, k_heads, kDim], [bs, nodes, v_heads, v_dim],
//              [bs, nodes, v_heads]; inputs model type [bs, nodes, C]: the stash, written whole.
//   v_dim is a multiple of 32, v_heads one of k_heads; kDim is 64 or 128; all arrays 16-byte
//   aligned.
// Launch: verify grid (v_dim / 32, v_heads, bs), 256 threads, GatedDeltaTile::kSharedBytes (at
//   most 101,376); commit grid (v_dim / 32, v_heads, layers * bs), 256 threads, 2,048 B.
#pragma once

#include "ddtree/device.cuh"

namespace ddtree {

struct GatedDeltaParams {
  const void* x;
  const void* a;
  const void* b;
  const void* weight;
  const void* bias;
  const float* a_log;
  const float* dt_bias;
  const void* states;
  const void* windows;
  const int64_t* slots;
  const int32_t* parent;
  const uint64_t* ancestors;
  void* out;
  float* keys;
  float* updates;
  float* log_decay;
  void* inputs;
  int64_t x_stride_request;
  int64_t x_stride_node;
  int64_t a_stride_request;
  int64_t a_stride_node;
  int64_t b_stride_request;
  int64_t b_stride_node;
  float scale;
  int32_t bs;
  int32_t nodes;
  int32_t k_heads;
  int32_t v_heads;
  int32_t v_dim;
  int32_t taps;
  int32_t silu;
};

// Strides of layers and slots are in values; the stash has stash_requests requests a layer.
struct GatedDeltaCommitParams {
  const float* keys;
  const float* updates;
  const float* log_decay;
  const void* inputs;
  void* states;
  void* windows;
  const int64_t* source;
  const int64_t* target;
  const int64_t* leaf;
  const int32_t* parent;
  const uint64_t* ancestors;
  int64_t state_stride_layer;
  int64_t window_stride_layer;
  int32_t layers;
  int32_t bs;
  int32_t stash_requests;
  int32_t nodes;
  int32_t words;
  int32_t k_heads;
  int32_t v_heads;
  int32_t v_dim;
  int32_t taps;
  int32_t reserved;
};

constexpr float kLogZero = -1e4f;  // zero after exp, yet finite

template <int kNodes_, int kDim_, class Model_, class State_>
struct GatedDeltaTile {
  using Model = Model_;
  using State = State_;
  static constexpr int kNodes = kNodes_, kDim = kDim_, kThreads = 256, kWarps = kThreads / kWarp;
  static constexpr int kSlice = kWarp;     // values of a head that a block takes, one a lane
  static constexpr int kBlock = 16;        // nodes solved at a time
  static constexpr int kPitch = kDim + 4;  // floats; quarter-warps read 16 bytes without conflict
  static_assert(kNodes % kBlock == 0 && kNodes <= 64 && kDim % kWarp == 0);

  static constexpr int kKeys = 0;
  static constexpr int kQueries = kKeys + kNodes * kPitch * 4;
  static constexpr int kState = kQueries + kBlock * kPitch * 4;
  static constexpr int kUpdates = kState + kSlice * kPitch * 4;
  static constexpr int kSystem = kUpdates + kNodes * kSlice * 4;
  static constexpr int kReads = kSystem + kBlock * kNodes * 4;
  static constexpr int kAncestors = kReads + kBlock * kNodes * 4;
  static constexpr int kParent = kAncestors + kNodes * 8;
  static constexpr int kLogDecay = kParent + kNodes * 4;
  static constexpr int kFromRoot = kLogDecay + kNodes * 4;
  static constexpr int kBeta = kFromRoot + kNodes * 4;
  static constexpr int kSharedBytes = kBeta + kNodes * 4;
  static_assert(kSharedBytes <= 101376, "more shared memory than a block of sm_120 has");
};

DDTREE_DEVICE float sigmoid(float x) { return 1 / (1 + expf(-x)); }
DDTREE_DEVICE float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

// The node before `node` on its path; below 0 it counts back into the committed window.
DDTREE_DEVICE int node_above(int node, const int32_t* parent) {
  return node >= 0 ? parent[node] : node - 1;
}

template <class Tile>
class GatedDeltaVerify {
  using Model = typename Tile::Model;
  using State = typename Tile::State;
  static constexpr int kDim = Tile::kDim, kBlock = Tile::kBlock, kNodes = Tile::kNodes;
  static constexpr int kEach = kDim / kWarp;  // channels of a key, a lane's own

 public:
  DDTREE_DEVICE GatedDeltaVerify(const GatedDeltaParams& params, char* shared)
      : p(params),
        shared_(shared),
        thread(thread_index()),
        lane(thread % kWarp),
        warp(thread / kWarp),
        slice(block_index(0)),
        head(block_index(1)),
        request(block_index(2)),
        group(params.v_heads / params.k_heads),
        channels(2 * params.k_heads * kDim + params.v_heads * params.v_dim) {}

  DDTREE_DEVICE void run() {
    load_tree();
    load_state();
    sync_block();
    load_keys_and_values();
    sum_paths();
    sync_block();
    predict();
    for (int start = 0; start < p.nodes; start += kBlock) {
      load_queries(start);
      sync_block();
      multiply_pairs(start);
      sync_block();
      subtract_earlier(start);
      sync_block();
      if (warp == 0) solve(start);
      sync_block();
      store(start);
    }
  }

 private:
  DDTREE_DEVICE void load_tree() {
    if (thread < kNodes) {
      const bool live = thread < p.nodes;
      const int64_t node = int64_t(request) * p.nodes + thread;
      parent()[thread] = live ? p.parent[node] : -1;
      ancestors()[thread] = live ? p.ancestors[node] : uint64_t{0};
      float g = 0, strength = 0;
      if (live) {
        const Model* a = static_cast<const Model*>(p.a) + request * p.a_stride_request;
        const Model* b = static_cast<const Model*>(p.b) + request * p.b_stride_request;
        g = -expf(p.a_log[head]) *
            softplus(to_float(a[thread * p.a_stride_node + head]) + p.dt_bias[head]);
        g = fmaxf(g, kLogZero);
        // Rounded as decoding rounds it.
        strength =
            to_float(from_float<Model>(sigmoid(to_float(b[thread * p.b_stride_node + head]))));
        if (slice == 0) p.log_decay[node * p.v_heads + head] = g;
      }
      log_decay()[thread] = g;
      beta()[thread] = strength;
    }
  }

  DDTREE_DEVICE void load_state() {
    const int64_t slot = p.slots[request];
    const State* from = static_cast<const State*>(p.states) +
                        ((slot < 0 ? 0 : slot) * p.v_heads + head) * p.v_dim * kDim +
                        slice * Tile::kSlice * kDim;
    for (int i = thread; i < Tile::kSlice * kDim; i += Tile::kThreads) {
      state()[i / kDim * Tile::kPitch + i % kDim] = slot < 0 ? 0 : to_float(from[i]);
    }
  }

  // The convolution of one channel at `node`, along its parents.
  DDTREE_DEVICE float convolve(int node, int channel) const {
    const Model* x = static_cast<const Model*>(p.x) + request * p.x_stride_request;
    const Model* weight = static_cast<const Model*>(p.weight) + channel * p.taps;
    const int64_t slot = p.slots[request];
    const Model* window = static_cast<const Model*>(p.windows) +
                          ((slot < 0 ? 0 : slot) * channels + channel) * (p.taps - 1);
    float sum = p.bias == nullptr ? 0 : to_float(static_cast<const Model*>(p.bias)[channel]);
    int at = node;
    for (int tap = p.taps - 1; tap >= 0; --tap) {
      float value = 0;
      if (at >= 0) {
        value = to_float(x[at * p.x_stride_node + channel]);
      } else if (slot >= 0) {
        value = to_float(window[p.taps - 1 + at]);
      }
      sum += value * to_float(weight[tap]);
      at = node_above(at, parent());
    }
    if (p.silu) sum *= sigmoid(sum);
    return to_float(from_float<Model>(sum));
  }

  DDTREE_DEVICE void keep_input(int node, int channel) const {
    const Model* x = static_cast<const Model*>(p.x) + request * p.x_stride_request;
    static_cast<Model*>(p.inputs)[(int64_t(request) * p.nodes + node) * channels + channel] =
        x[node * p.x_stride_node + channel];
  }

  // Convolved and normalised, a node a warp; each lane ends up with the values it stores.
  DDTREE_DEVICE void load_vector(float* to, int node, int first_channel, bool keeps) const {
    float values[kEach], square = 0;
    DDTREE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int channel = first_channel + i * kWarp + lane;
      values[i] = convolve(node, channel);
      square += values[i] * values[i];
      if (keeps) keep_input(node, channel);
    }
    const float scale = 1 / sqrtf(warp_sum(square) + 1e-6f);
    DDTREE_UNROLL
    for (int i = 0; i < kEach; ++i) to[i * kWarp + lane] = values[i] * scale;
  }

  DDTREE_DEVICE bool first_of_group() const { return slice == 0 && head % group == 0; }

  DDTREE_DEVICE void load_keys_and_values() {
    const int k_head = head / group;
    const int v_channel = 2 * p.k_heads * kDim + head * p.v_dim + slice * Tile::kSlice + lane;
    for (int node = warp; node < kNodes; node += Tile::kWarps) {
      float* to = keys() + node * Tile::kPitch;
      if (node >= p.nodes) {  // so that nothing reads what was never written
        for (int i = lane; i < kDim; i += kWarp) to[i] = 0;
        updates()[node * Tile::kSlice + lane] = 0;
        continue;
      }
      load_vector(to, node, (p.k_heads + k_head) * kDim, first_of_group());
      if (first_of_group()) {
        float* kept = p.keys + ((int64_t(request) * p.nodes + node) * p.k_heads + k_head) * kDim;
        DDTREE_UNROLL
        for (int i = 0; i < kEach; ++i) kept[i * kWarp + lane] = to[i * kWarp + lane];
      }
      updates()[node * Tile::kSlice + lane] = convolve(node, v_channel);
      keep_input(node, v_channel);
    }
  }

  // exp of the sum over the path: terms of one sign, never a difference of sums.
  DDTREE_DEVICE void sum_paths() {
    if (thread < kNodes) from_root()[thread] = expf(path_sum(thread, -1));
  }
  DDTREE_DEVICE float path_sum(int node, int after) const {
    uint64_t path = ancestors()[node];
    path = after < 0 ? path : after >= 63 ? 0 : path >> (after + 1) << (after + 1);
    float sum = 0;
    for (; path != 0; path &= path - 1) sum += log_decay()[lowest_bit(path)];
    return sum;
  }

  // The lane's row of the state times a vector in shared memory that all lanes read.
  DDTREE_DEVICE float read_state(const float* vector) const {
    const float* row = state() + lane * Tile::kPitch;
    float sum = 0;
    DDTREE_UNROLL
    for (int i = 0; i < kDim; ++i) sum += row[i] * vector[i];
    return sum;
  }

  // What of a value the state does not yet predict, times beta: the right-hand side.
  DDTREE_DEVICE void predict() {
    for (int node = warp; node < p.nodes; node += Tile::kWarps) {
      float& u = updates()[node * Tile::kSlice + lane];
      const float known = from_root()[node] * read_state(keys() + node * Tile::kPitch);
      u = beta()[node] * (u - known);
    }
  }

  DDTREE_DEVICE void load_queries(int start) {
    for (int i = warp; i < kBlock; i += Tile::kWarps) {
      float* to = queries() + i * Tile::kPitch;
      if (start + i < p.nodes) {
        load_vector(to, start + i, head / group * kDim, first_of_group());
      } else {
        for (int j = lane; j < kDim; j += kWarp) to[j] = 0;
      }
    }
  }

  // Row i of the unit lower-triangular system, and what the query of i reads, for a block of nodes.
  DDTREE_DEVICE void multiply_pairs(int start) {
    for (int pair = thread; pair < kBlock * (start + kBlock); pair += Tile::kThreads) {
      const int i = pair / (start + kBlock), other = pair % (start + kBlock), node = start + i;
      float system_value = 0, read_value = 0;
      if (node < p.nodes && (ancestors()[node] >> other) & 1) {
        const float* k = keys() + node * Tile::kPitch;
        const float* q = queries() + i * Tile::kPitch;
        const float* other_k = keys() + other * Tile::kPitch;
        float k_product = 0, q_product = 0;
        DDTREE_UNROLL
        for (int j = 0; j < kDim; ++j) {
          k_product += k[j] * other_k[j];
          q_product += q[j] * other_k[j];
        }
        const float decay = expf(path_sum(node, other));
        if (other < node) system_value = beta()[node] * decay * k_product;
        read_value = decay * q_product;
      }
      system()[i * kNodes + other] = system_value;
      reads()[i * kNodes + other] = read_value;
    }
  }

  // u of a block minus what earlier blocks contribute.
  DDTREE_DEVICE void subtract_earlier(int start) {
    for (int i = warp; i < kBlock && start + i < p.nodes; i += Tile::kWarps) {
      uint64_t path = ancestors()[start + i] & ((uint64_t{1} << start) - 1);
      float u = updates()[(start + i) * Tile::kSlice + lane];
      for (; path != 0; path &= path - 1) {
        const int other = lowest_bit(path);
        u -= system()[i * kNodes + other] * updates()[other * Tile::kSlice + lane];
      }
      updates()[(start + i) * Tile::kSlice + lane] = u;
    }
  }

  // Forward substitution inside a block. A lane reads only the values it wrote itself.
  DDTREE_DEVICE void solve(int start) {
    for (int i = 1; i < kBlock && start + i < p.nodes; ++i) {
      uint64_t path = ancestors()[start + i] >> start << start;
      float u = updates()[(start + i) * Tile::kSlice + lane];
      for (; path != 0; path &= path - 1) {
        const int other = lowest_bit(path);
        if (other >= start + i) break;
        u -= system()[i * kNodes + other] * updates()[other * Tile::kSlice + lane];
      }
      updates()[(start + i) * Tile::kSlice + lane] = u;
    }
  }

  DDTREE_DEVICE void store(int start) {
    for (int i = warp; i < kBlock && start + i < p.nodes; i += Tile::kWarps) {
      const int node = start + i;
      float sum = from_root()[node] * read_state(queries() + i * Tile::kPitch);
      for (uint64_t path = ancestors()[node]; path != 0; path &= path - 1) {
        const int other = lowest_bit(path);
        sum += reads()[i * kNodes + other] * updates()[other * Tile::kSlice + lane];
      }
      const int64_t to = ((int64_t(request) * p.nodes + node) * p.v_heads + head) * p.v_dim +
                         slice * Tile::kSlice + lane;
      p.updates[to] = updates()[node * Tile::kSlice + lane];
      static_cast<Model*>(p.out)[to] = from_float<Model>(sum * p.scale);
    }
    sync_warp();  // the warp's queries have been read, the next block's may come
  }

  template <class T>
  DDTREE_DEVICE T* at(int offset) const {
    return reinterpret_cast<T*>(shared_ + offset);
  }
  DDTREE_DEVICE float* keys() const { return at<float>(Tile::kKeys); }
  DDTREE_DEVICE float* queries() const { return at<float>(Tile::kQueries); }
  DDTREE_DEVICE float* state() const { return at<float>(Tile::kState); }
  DDTREE_DEVICE float* updates() const { return at<float>(Tile::kUpdates); }
  DDTREE_DEVICE float* system() const { return at<float>(Tile::kSystem); }
  DDTREE_DEVICE float* reads() const { return at<float>(Tile::kReads); }
  DDTREE_DEVICE uint64_t* ancestors() const { return at<uint64_t>(Tile::kAncestors); }
  DDTREE_DEVICE int32_t* parent() const { return at<int32_t>(Tile::kParent); }
  DDTREE_DEVICE float* log_decay() const { return at<float>(Tile::kLogDecay); }
  DDTREE_DEVICE float* from_root() const { return at<float>(Tile::kFromRoot); }
  DDTREE_DEVICE float* beta() const { return at<float>(Tile::kBeta); }

  const GatedDeltaParams& p;
  char* shared_;
  const int thread, lane, warp, slice, head, request, group, channels;
};

// State and window after one node of each request. A thread reads all of what it writes before it
// writes, so source and target may be one slot.
template <int kDim, class Model, class State>
class GatedDeltaCommit {
  static constexpr int kThreads = 256, kSlice = kWarp, kEach = kSlice * kDim / kThreads;

 public:
  static constexpr int kSharedBytes = 256 * 8;

  DDTREE_DEVICE GatedDeltaCommit(const GatedDeltaCommitParams& params, char* shared)
      : p(params),
        kept(reinterpret_cast<float*>(shared)),
        nodes_of_path(reinterpret_cast<int32_t*>(shared + 256 * 4)),
        thread(thread_index()),
        slice(block_index(0)),
        head(block_index(1)),
        layer(block_index(2) / params.bs),
        request(block_index(2) % params.bs),
        group(params.v_heads / params.k_heads),
        channels(2 * params.k_heads * kDim + params.v_heads * params.v_dim) {}

  DDTREE_DEVICE void run() {
    source = p.source[request];
    target = p.target[request];
    if (source < 0 || target < 0) return;
    leaf = static_cast<int>(p.leaf[request]);
    root = (int64_t(layer) * p.stash_requests + request) * p.nodes;
    const int count = list_path();
    sync_block();
    commit_state(count);
    commit_window(2 * p.k_heads * kDim + head * p.v_dim + slice * kSlice, kSlice);
    if (slice == 0 && head % group == 0) {
      commit_window(head / group * kDim, kDim);
      commit_window((p.k_heads + head / group) * kDim, kDim);
    }
  }

 private:
  DDTREE_DEVICE uint64_t path_word(int word) const {
    return p.ancestors[(int64_t(request) * p.nodes + leaf) * p.words + word];
  }

  // Nodes of the path in order, and how much of each one's update the later ones keep.
  DDTREE_DEVICE int list_path() {
    total = 0;
    if (leaf < 0) return 0;
    int count = 0, rank = -1;
    float after = 0;
    for (int word = 0; word < p.words; ++word) {
      for (uint64_t path = path_word(word); path != 0; path &= path - 1, ++count) {
        const int node = word * 64 + lowest_bit(path);
        const float g = p.log_decay[(root + node) * p.v_heads + head];
        total += g;
        if (node == thread) rank = count;
        if (node > thread) after += g;
      }
    }
    if (rank >= 0) {
      nodes_of_path[rank] = thread;
      kept[rank] = expf(after);
    }
    return count;
  }

  DDTREE_DEVICE void commit_state(int count) {
    State* states = static_cast<State*>(p.states) + layer * p.state_stride_layer;
    const int64_t row = (int64_t(head) * p.v_dim + slice * kSlice) * kDim;
    const int64_t of_slot = int64_t(p.v_heads) * p.v_dim * kDim;
    const State* from = states + source * of_slot + row;
    State* to = states + target * of_slot + row;
    float values[kEach];
    const float decay = expf(total);
    DDTREE_UNROLL
    for (int i = 0; i < kEach; ++i) values[i] = decay * to_float(from[thread + i * kThreads]);
    const int column = thread % kDim;
    for (int j = 0; j < count; ++j) {
      const int64_t node = root + nodes_of_path[j];
      const float k = kept[j] * p.keys[(node * p.k_heads + head / group) * kDim + column];
      const float* u = p.updates + (node * p.v_heads + head) * p.v_dim + slice * kSlice;
      DDTREE_UNROLL
      for (int i = 0; i < kEach; ++i) values[i] += k * u[(thread + i * kThreads) / kDim];
    }
    DDTREE_UNROLL
    for (int i = 0; i < kEach; ++i) to[thread + i * kThreads] = from_float<State>(values[i]);
  }

  // The last inputs of the path. Ascending, as no column reads an earlier one.
  DDTREE_DEVICE void commit_window(int first, int count) {
    if (thread >= count) return;
    const int channel = first + thread, length = p.taps - 1;
    Model* windows = static_cast<Model*>(p.windows) + layer * p.window_stride_layer;
    const Model* from = windows + (source * channels + channel) * length;
    Model* to = windows + (target * channels + channel) * length;
    const Model* inputs = static_cast<const Model*>(p.inputs) + root * channels + channel;
    const int32_t* parent = p.parent + request * p.nodes;
    for (int tap = 0; tap < length; ++tap) {
      int node = leaf;
      for (int back = length - 1; back > tap; --back) node = node_above(node, parent);
      to[tap] = node >= 0 ? inputs[int64_t(node) * channels] : from[length + node];
    }
  }

  const GatedDeltaCommitParams& p;
  float* kept;
  int32_t* nodes_of_path;
  const int thread, slice, head, layer, request, group, channels;
  int64_t source = 0, target = 0, root = 0;
  int leaf = 0;
  float total = 0;
};

}  // namespace ddtree
