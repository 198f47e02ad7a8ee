// Shared by the warpgroups of linear_prefill.cu: arguments, shared memory
// layout, routes. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_PREFILL_SHARED_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_PREFILL_SHARED_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/common/mma.cuh"
#include "kernels/linear_attn/linear_prefill_tiles.cuh"
#include "kernels/linear_attn/linear_wgmma.cuh"

namespace recurve {
namespace linear_prefill {

using Bf16 = Half<__nv_bfloat16>;

// How tiles get into shared memory: q, k and v as they are; copied, then
// activated and encoded in place; or made from global memory, for any type,
// activation and alignment.
enum class Source { kCopied, kChanged, kMade };

// The cut of a launch, in 32 bits for the device.
struct Shape {
  int head_dim;
  int key_dim;
  int value_dim;
  int value_tiles;
  int stages;
  int key_slices;
  int exchange_bytes;  // of one buffer of partial sums
  int exchange_blocks;
};

// Addresses in a block's shared memory, the same in every block of a cluster.
template <int kGroups>
struct Layout {
  static constexpr int kStageBytes = (2 + kGroups) * wgmma::kTileBytes;

  __device__ __forceinline__ Layout(uint32_t start, const Shape& s)
      : scores(start + s.stages * kStageBytes),
        exchange(scores + 2 * wgmma::kTileBytes),
        outputs(exchange + 2 * kGroups * s.exchange_bytes),
        powers(outputs + kGroups * wgmma::kTileBytes),
        barriers(powers + 512),
        stages(start),
        exchange_bytes(s.exchange_bytes) {}

  __device__ __forceinline__ uint32_t Queries(int stage) const {
    return stages + stage * kStageBytes;
  }
  __device__ __forceinline__ uint32_t Keys(int stage) const {
    return Queries(stage) + wgmma::kTileBytes;
  }
  __device__ __forceinline__ uint32_t Values(int stage, int group) const {
    return Queries(stage) + (2 + group) * wgmma::kTileBytes;
  }
  __device__ __forceinline__ uint32_t Scores(int c) const {
    return scores + (c & 1) * wgmma::kTileBytes;
  }
  __device__ __forceinline__ uint32_t Exchange(int group, int c) const {
    return exchange + (2 * group + (c & 1)) * exchange_bytes;
  }
  // Barriers. A stage is full, is free; scores are ready, are used; partial
  // sums have arrived, and sent ones have been used.
  __device__ __forceinline__ uint32_t Full(int stage) const {
    return barriers + 8 * stage;
  }
  __device__ __forceinline__ uint32_t Free(int stage) const {
    return barriers + 64 + 8 * stage;
  }
  __device__ __forceinline__ uint32_t ScoresFull(int c) const {
    return barriers + 128 + 8 * (c & 1);
  }
  __device__ __forceinline__ uint32_t ScoresFree(int c) const {
    return barriers + 144 + 8 * (c & 1);
  }
  __device__ __forceinline__ uint32_t SumsFull(int group, int c) const {
    return barriers + 160 + 32 * group + 8 * (c & 1);
  }
  __device__ __forceinline__ uint32_t SumsFree(int group, int c) const {
    return SumsFull(group, c) + 16;
  }

  uint32_t scores, exchange, outputs, powers, barriers;
  uint32_t stages;
  int exchange_bytes;
};

// Index in its warpgroup; the compiler would re-read it at each use.
__device__ __forceinline__ int GroupThread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread % kGroup;
}

// Which block of the cluster sums which blocks of 8 of a chunk's tokens.
struct Routes {
  __device__ __forceinline__ explicit Routes(int slices) : key_slices(slices) {
    for (int b = 0; b < 8; ++b) {
      const int owner = b * key_slices >> 3;
      packed |= static_cast<uint64_t>(owner | (b - FirstBlock(owner)) << 4)
                << (8 * b);
    }
  }
  __device__ __forceinline__ int FirstBlock(int owner) const {
    return (8 * owner + key_slices - 1) / key_slices;
  }
  __device__ __forceinline__ int Owner(int b) const {
    return static_cast<int>(packed >> (8 * b)) & 15;
  }
  // Index of block b among its owner's blocks.
  __device__ __forceinline__ int Place(int b) const {
    return static_cast<int>(packed >> (8 * b + 4)) & 15;
  }

  int key_slices;
  uint64_t packed = 0;
};

}  // namespace linear_prefill
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_PREFILL_SHARED_CUH_
