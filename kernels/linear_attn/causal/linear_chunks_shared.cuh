// Shared by the warpgroups of linear_chunks.cu: arguments, shared memory
// layout, parts. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_SHARED_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_SHARED_CUH_

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/linear_attn/causal/linear_chunks_plan.h"
#include "kernels/linear_attn/causal/linear_prefill_cuda.h"
#include "kernels/linear_attn/linear_boxes.cuh"
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
  // Boxes of 64 features of a head: of 64 tokens, and of the tokens that one of
  // two blocks copies for both.
  CUtensorMap q, k[2], v[2];
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
        barriers(states + args.state_buffers * kKeyBytes) {}

  __device__ __forceinline__ uint32_t Keys(int stage) const {
    return keys + stage * kStageBytes;
  }
  __device__ __forceinline__ uint32_t Values(int stage) const {
    return Keys(stage) + kKeyBytes;
  }
  __device__ __forceinline__ uint32_t Queries(int stage) const {
    return queries + stage * kKeyBytes;
  }
  // S as an operand: for each 64 features, 64 columns by these features.
  __device__ __forceinline__ uint32_t State(int buffer) const {
    return states + buffer * kKeyBytes;
  }
  // Barriers: eight of each kind in sequence.
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
    return barriers + 320 + 8 * buffer;
  }
  // One thread for each, concurrently: one for all would take longer than the
  // first copies. Before __syncthreads.
  __device__ __forceinline__ void InitBarriers(int turns) const {
    constexpr int kWarps = kGroup / 32;
    const int kind = threadIdx.x / 8;
    if (kind > 5) return;
    int arrivals = kWarps;  // of those that read queries and states,
                            // and of those that publish states
    if (kind == 0) arrivals = kKeyTiles + 1;  // those that copy k and v
    // A stage is read by all warpgroups that keep the state, and by the one
    // that makes its outputs.
    if (kind == 1) arrivals = kWarps * (turns + 1);
    if (kind == 2) arrivals = 1;  // the one that copies queries
    BarrierInit(barriers + 8 * threadIdx.x, arrivals);
    BarrierInitFence();
  }

  uint32_t keys, queries, states, barriers;
};

// A block's part: 64 columns of a head of a row, and the outputs of every
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
  const CUtensorMap* map_k;
  const CUtensorMap* map_v;
};

// If all units have the same number of blocks, their indices are the grid's
// three dimensions: known to be uniform, they take 5% off a chunk.
template <bool kMixed>
__device__ __forceinline__ Part PartOf(const Args& args) {
  Part part;
  if (!kMixed) {
    part.tile = blockIdx.x / args.turns;
    part.turn = blockIdx.x % args.turns;
    part.turns = args.turns;
    part.head = blockIdx.y;
    part.row = blockIdx.z;
    part.map_k = &args.k[args.turns - 1];
    part.map_v = &args.v[args.turns - 1];
    return part;
  }
  const int block = static_cast<int>(blockIdx.x);
  const int shared = block - args.lone;
  part.turns = shared < 0 ? 1 : args.turns;
  part.turn = block & (part.turns - 1);
  part.map_k = &args.k[part.turns - 1];
  part.map_v = &args.v[part.turns - 1];
  const int unit = shared < 0 ? block : args.lone + shared / args.turns;
  const int rest = Uniform(unit / args.value_tiles);
  part.tile = unit - rest * args.value_tiles;
  part.row = Uniform(rest / args.heads);
  part.head = rest - part.row * args.heads;
  return part;
}

// λ^n, n >= 0.
__device__ __forceinline__ float Power(float log2_decay, int n) {
  return FastExp2(log2_decay * static_cast<float>(n));
}
// Keeps the compiler from recomputing these at each use.
template <int kCount>
__device__ __forceinline__ void HoldValues(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i]));
}

// One lane for each block of the cluster arrives there.
__device__ __forceinline__ void ArriveEverywhere(uint32_t barrier, int blocks) {
  __syncwarp();
  const int lane = threadIdx.x % 32;
  if (blocks == 1) {
    if (lane == 0) BarrierArrive(barrier);
  } else if (lane < blocks) {
    cluster::ArriveInCluster(cluster::InBlock(barrier, lane));
  }
}

}  // namespace linear_chunks
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_SHARED_CUH_
