// How linear attention over chunks of plain tiles (linear_chunks.h) is cut into
// thread blocks: plain arithmetic, so that it can be tested without a GPU.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_PLAN_H_
#define RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_PLAN_H_

#include <cstdint>

namespace recurve {

inline constexpr int kLinearChunksMaxDim = 128;  // of D
inline constexpr int kLinearChunksTileBytes = 64 * 64 * 2;
// Groups of four warps that make outputs, in turns; two others copy, and keep
// the state.
inline constexpr int kLinearChunksWriters = 2;
inline constexpr int kLinearChunksThreads = 128 * (2 + kLinearChunksWriters);
// A group goes around the ring at most once from one of its chunks to the next,
// the fourth behind it where two blocks take turns.
inline constexpr int kLinearChunksMinStages = 4;
static_assert(kLinearChunksMinStages >= 2 * kLinearChunksWriters, "");
inline constexpr int kLinearChunksMaxStages = 6;
// With more units than so many a cluster, what the last wave lacks is little.
inline constexpr int kLinearChunksManyWaves = 20;
// Barriers, and what it takes to begin at a multiple of 1024 bytes.
inline constexpr int kLinearChunksFixedBytes = 1536;

struct LinearChunksPlan {
  int key_tiles;      // of 64 features, 1 or 2
  int value_tiles;    // of 64 columns
  int turns;          // blocks of a cluster, 1 or 2
  int64_t lone;       // units, the first of all, that have a block each. The
                      // blocks of a cluster have another one together: they
                      // take turns with the outputs of its chunks.
  int stages;         // chunks of k and v on their way
  int query_stages;   // and of q
  int state_buffers;  // of states that outputs are made with
  int shared_bytes;
};

// A unit of work is one row's 64 columns of one head: a block keeps all of D by
// these columns of the state. What a row's outputs and states are does not
// depend on the plan: blocks that take turns have the same state, to the bit.
constexpr LinearChunksPlan PlanLinearChunks(int64_t head_dim, int64_t value_dim,
                                            int64_t num_heads, int64_t max_rows,
                                            int multiprocessors,
                                            int shared_limit) {
  LinearChunksPlan plan = {};
  plan.key_tiles = static_cast<int>((head_dim + 63) / 64);
  plan.value_tiles = static_cast<int>((value_dim + 63) / 64);
  const int64_t units = max_rows * num_heads * plan.value_tiles;
  // Clusters that have room at a time, and blocks that are left over.
  const int64_t clusters = multiprocessors / 2;
  const int64_t rest = clusters > 0 ? units % (2 * clusters) : 0;
  plan.turns = 1;
  if (rest > 0 && rest <= clusters &&
      units < kLinearChunksManyWaves * clusters) {
    plan.turns = 2;
    plan.lone = units - rest;
  }
  // Each group has its own: of one that both had, a group would see every
  // second round, and could not tell it from the one before.
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
