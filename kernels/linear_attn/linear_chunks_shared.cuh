// What the groups of threads of linear attention over chunks share. Device code
// only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_CHUNKS_SHARED_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_CHUNKS_SHARED_CUH_

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/linear_attn/linear_boxes.cuh"
#include "kernels/linear_attn/linear_cluster.cuh"
#include "kernels/linear_attn/linear_prefill_cuda.h"
#include "kernels/linear_attn/linear_prefill_tiles.cuh"
#include "kernels/linear_attn/linear_wgmma.cuh"

namespace recurve {
namespace linear_chunks {

using linear_boxes::Place;

using linear_prefill::kChunk;
using linear_prefill::kGroup;
using linear_prefill::Row;
using Bf16 = Half<__nv_bfloat16>;

struct Args {
  LinearPrefillParams p;
  // Boxes of 64 features of a head: of 64 tokens of q, and of k and v of the
  // tokens that one block of a cluster brings in for all.
  CUtensorMap q, k, v;
  int head_dim;
  int value_dim;
  int heads;
  int value_tiles;
  int turns;  // see LinearChunksPlan
  int lone;
  int stages;
  int query_stages;
  int state_buffers;
};

// Addresses in a block's shared memory, the same in every block of a cluster.
template <int kKeyTiles>
struct Layout {
  static constexpr int kKeyBytes = kKeyTiles * wgmma::kTileBytes;
  static constexpr int kStageBytes = kKeyBytes + wgmma::kTileBytes;

  __device__ __forceinline__ Layout(uint32_t start, const Args& args)
      : keys(start),
        queries(keys + args.stages * kStageBytes),
        states(queries + args.query_stages * kKeyBytes),
        outputs(states + args.state_buffers * kKeyBytes),
        powers(outputs + wgmma::kTileBytes),
        scaled(powers + 512),
        pairs(scaled + 512),
        barriers(pairs + 256) {}

  __device__ __forceinline__ uint32_t Keys(int stage) const {
    return keys + stage * kStageBytes;
  }
  __device__ __forceinline__ uint32_t Values(int stage) const {
    return Keys(stage) + kKeyBytes;
  }
  __device__ __forceinline__ uint32_t Queries(int stage) const {
    return queries + stage * kKeyBytes;
  }
  // S as a factor: for each 64 features, 64 columns by these features.
  __device__ __forceinline__ uint32_t State(int buffer) const {
    return states + buffer * kKeyBytes;
  }
  // Barriers.
  __device__ __forceinline__ uint32_t Full(int stage) const {
    return barriers + 8 * stage;
  }
  __device__ __forceinline__ uint32_t Free(int stage) const {
    return barriers + 64 + 8 * stage;
  }
  __device__ __forceinline__ uint32_t QueryFull(int stage) const {
    return barriers + 128 + 8 * stage;
  }
  __device__ __forceinline__ uint32_t QueryFree(int stage) const {
    return barriers + 192 + 8 * stage;
  }
  __device__ __forceinline__ uint32_t StateFull(int buffer) const {
    return barriers + 256 + 8 * buffer;
  }
  __device__ __forceinline__ uint32_t StateFree(int buffer) const {
    return barriers + 288 + 8 * buffer;
  }

  uint32_t keys, queries, states, outputs;
  uint32_t powers;  // λ^n, n in [0, kChunk]
  uint32_t scaled;  // the same times the scale of outputs
  uint32_t pairs;   // λ^n and λ^(n−1) as bfloat16, n in [0, kChunk)
  uint32_t barriers;
};

__device__ __forceinline__ int Uniform(int x) {
  return __shfl_sync(0xffffffffu, x, 0);
}

// What a block has: 64 columns of a head of a row, and the outputs of every
// `turns`th chunk.
struct Part {
  __device__ __forceinline__ bool Mine(int chunk) const {
    return (chunk & (turns - 1)) == turn;
  }

  int tile;
  int head;
  int row;
  int turn;  // and rank in the cluster
  int turns;
  int boxes;  // of k, and of v, that the block brings in for a chunk
};

// Where all units have as many blocks, these come from the grid's three
// dimensions: known to be the same in all threads, they take 5% off a chunk.
template <bool kMixed>
__device__ __forceinline__ Part PartOf(const Args& args) {
  Part part;
  if (!kMixed) {
    part.tile = blockIdx.x / args.turns;
    part.turn = blockIdx.x % args.turns;
    part.turns = args.turns;
    part.head = blockIdx.y;
    part.row = blockIdx.z;
    part.boxes = 1;
    return part;
  }
  const int block = static_cast<int>(blockIdx.x);
  const int shared = block - args.lone;
  part.turns = shared < 0 ? 1 : args.turns;
  part.turn = block & (part.turns - 1);
  part.boxes = args.turns / part.turns;
  const int unit = shared < 0 ? block : args.lone + shared / args.turns;
  const int rest = Uniform(unit / args.value_tiles);
  part.tile = unit - rest * args.value_tiles;
  part.row = Uniform(rest / args.heads);
  part.head = rest - part.row * args.heads;
  return part;
}

// One lane for each block of the cluster arrives there.
__device__ __forceinline__ void ArriveEverywhere(uint32_t barrier, int blocks) {
  __syncwarp();
  const int lane = threadIdx.x % 32;
  if (blocks == 1) {
    if (lane == 0) BarrierArrive(barrier);
  } else if (lane < blocks) {
    linear_cluster::ArriveInCluster(linear_cluster::InBlock(barrier, lane));
  }
}

// Entry n of a table of powers.
__device__ __forceinline__ float Power(uint32_t table, int n) {
  float power;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(power) : "r"(table + 4 * n));
  return power;
}
__device__ __forceinline__ uint32_t PowerPair(uint32_t table, int n) {
  uint32_t pair;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pair) : "r"(table + 4 * n));
  return pair;
}

}  // namespace linear_chunks
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_CHUNKS_SHARED_CUH_
