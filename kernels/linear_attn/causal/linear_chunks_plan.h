// How linear attention over chunks of plain tiles (linear_chunks.h) is cut into
// thread blocks: plain arithmetic, testable without a GPU.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_PLAN_H_
#define RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_PLAN_H_

#include <cstdint>

namespace recurve {

inline constexpr int kLinearChunksMaxDim = 128;  // of D
inline constexpr int kLinearChunksTileBytes = 64 * 64 * 2;
// Warpgroups that make outputs, in turns; two others copy, and keep the state.
inline constexpr int kLinearChunksWriters = 2;
inline constexpr int kLinearChunksThreads = 128 * (2 + kLinearChunksWriters);
// A warpgroup goes around the ring buffer at most once between two of its
// chunks, which are four apart if two blocks take turns.
inline constexpr int kLinearChunksMinStages = 4;
static_assert(kLinearChunksMinStages >= 2 * kLinearChunksWriters, "");
inline constexpr int kLinearChunksMaxStages = 6;
// With more units a cluster than this, the last wave's idle time is small.
inline constexpr int kLinearChunksManyWaves = 20;
// Barriers, and alignment to 1024 bytes.
inline constexpr int kLinearChunksFixedBytes = 1536;

struct LinearChunksPlan {
  int key_tiles;    // of 64 features, 1 or 2
  int value_tiles;  // of 64 columns
  int turns;        // blocks of a cluster, 1 or 2
  int64_t lone;  // units, the first ones, with a block each. A cluster's blocks
                 // share each other unit: they take turns with the outputs of
                 // its chunks.
  int stages;    // chunks of k and v in flight
  int query_stages;   // and of q
  int state_buffers;  // of states that outputs are made with
  int shared_bytes;
};

// A unit of work is one row's 64 columns of one head: a block keeps all of D by
// these columns of the state. Outputs and states of a row do not depend on the
// plan: blocks that take turns have the same state, to the bit.
constexpr LinearChunksPlan PlanLinearChunks(int64_t head_dim, int64_t value_dim,
                                            int64_t num_heads, int64_t max_rows,
                                            int multiprocessors,
                                            int shared_limit) {
  LinearChunksPlan plan = {};
  plan.key_tiles = static_cast<int>((head_dim + 63) / 64);
  plan.value_tiles = static_cast<int>((value_dim + 63) / 64);
  const int64_t units = max_rows * num_heads * plan.value_tiles;
  // Clusters resident at a time, and remaining blocks.
  const int64_t clusters = multiprocessors / 2;
  const int64_t rest = clusters > 0 ? units % (2 * clusters) : 0;
  plan.turns = 1;
  if (rest > 0 && rest <= clusters &&
      units < kLinearChunksManyWaves * clusters) {
    plan.turns = 2;
    plan.lone = units - rest;
  }
  // Each warpgroup has its own: with a shared one, a warpgroup would see every
  // second round, and could not tell it from the previous one.
  plan.query_stages = 2 * kLinearChunksWriters;
  plan.state_buffers = kLinearChunksWriters;
  const int keys = plan.key_tiles * kLinearChunksTileBytes;
  const int stage = keys + kLinearChunksTileBytes;
  const int others =
      kLinearChunksFixedBytes + (plan.query_stages + plan.state_buffers) * keys;
  plan.stages = (shared_limit - others) / stage;
  if (plan.stages > kLinearChunksMaxStages) {
    plan.stages = kLinearChunksMaxStages;
  }
  plan.shared_bytes = others + plan.stages * stage;
  return plan;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_PLAN_H_
