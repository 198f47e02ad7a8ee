// What the groups of threads of non-causal linear attention share. Device code
// only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_SHARED_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_SHARED_CUH_

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/linear_attn/linear_boxes.cuh"
#include "kernels/linear_attn/linear_cluster.cuh"
#include "kernels/linear_attn/linear_noncausal_cuda.h"
#include "kernels/linear_attn/linear_wgmma.cuh"

namespace recurve {
namespace linear_ring {

using Bf16 = Half<__nv_bfloat16>;
using linear_boxes::Place;

constexpr int kTokens = 64;  // of a tile
constexpr int kParts = 4;    // of a sequence: blocks of a cluster
constexpr int kFeatures = 128;
constexpr int kGroup = 128;
constexpr int kMultipliers = 2 * kGroup;  // one group for each 64 columns
constexpr int kMakers = kGroup;
constexpr int kMultiplierWarps = kMultipliers / 32;
constexpr int kMakerWarps = kMakers / 32;
constexpr int kTileBytes = wgmma::kTileBytes;
constexpr int kRawBytes = 2 * kTileBytes;  // of a tile of k, v, q or g

// Lanes of a warp that arrive at a barrier for it, after __syncwarp. One is
// enough; compute-sanitizer's racecheck follows only what each thread does for
// itself, so a build for it has them all arrive.
#ifdef RECURVE_RACECHECK
constexpr int kArrivingLanes = 32;
#else
constexpr int kArrivingLanes = 1;
#endif

// What is done to q or k before its encoding.
enum class Change { kNone, kSilu, kSoftmax };

struct Args {
  LinearNoncausalParams p;
  // Boxes of 64 features of a head by kTokens tokens.
  CUtensorMap q, k, v, g;
  int heads;
  int head_dim;
  int value_dim;
  Change q_change;
  Change k_change;
};

// The three forms: factors as they are; made of each feature; and twice as many
// (cosines and sines).
enum class Form { kPlain, kMade, kCosine };

template <Form kForm>
struct Plan {
  static constexpr bool kMakes = kForm != Form::kPlain;
  static constexpr int kEncodings = kForm == Form::kCosine ? 2 : 1;
  static constexpr int kThreads =
      kMultipliers + (kMakes ? kMakers + kGroup : 32);
  static constexpr int kMadeBytes = kEncodings * kRawBytes;
  static constexpr int kMadeBuffers = kMakes ? 2 : 0;
  static constexpr int kKeyStages = kForm == Form::kCosine ? 3 : 5;
  static constexpr int kValueStages = kForm == Form::kCosine ? 4 : 5;
  // A thread's part of what one block adds up, in sixteens of bytes; and of
  // that as a factor.
  static constexpr int kShare = 4 * kEncodings;
  static constexpr int kFactorShare = kShare / 2;
  // What other blocks send. With makers, their tiles make room for it.
  static constexpr int kReceiveBytes =
      (kParts - 1) * kShare * kMultipliers * 16;
  static constexpr int kRegionBytes = kReceiveBytes > kMadeBuffers* kMadeBytes
                                          ? kReceiveBytes
                                          : kMadeBuffers* kMadeBytes;
  static constexpr int kBytes =
      1024 + (kKeyStages + kValueStages) * kRawBytes + kRegionBytes + 256;
  static_assert(kBytes <= 227 * 1024, "");
};

// Addresses in a block's shared memory, the same in every block of a cluster.
template <Form kForm>
struct Layout {
  using P = Plan<kForm>;
  __device__ __forceinline__ explicit Layout(uint32_t start)
      : keys(start),
        values(keys + P::kKeyStages * kRawBytes),
        region(values + P::kValueStages * kRawBytes),
        barriers(region + P::kRegionBytes) {}

  // Raw k, then q.
  __device__ __forceinline__ uint32_t Key(int stage) const {
    return keys + stage * kRawBytes;
  }
  // v, then g, whose place outputs take.
  __device__ __forceinline__ uint32_t Value(int stage) const {
    return values + stage * kRawBytes;
  }
  // k̃, then q̃, 64 features after 64.
  __device__ __forceinline__ uint32_t Made(int buffer) const {
    return region + buffer * P::kMadeBytes;
  }
  // Barriers.
  __device__ __forceinline__ uint32_t KeyFull(int stage) const {
    return barriers + 8 * stage;
  }
  __device__ __forceinline__ uint32_t KeyFree(int stage) const {
    return barriers + 48 + 8 * stage;
  }
  __device__ __forceinline__ uint32_t ValueFull(int stage) const {
    return barriers + 96 + 8 * stage;
  }
  __device__ __forceinline__ uint32_t ValueFree(int stage) const {
    return barriers + 144 + 8 * stage;
  }
  __device__ __forceinline__ uint32_t MadeFull(int buffer) const {
    return barriers + 192 + 8 * buffer;
  }
  __device__ __forceinline__ uint32_t MadeFree(int buffer) const {
    return barriers + 208 + 8 * buffer;
  }
  // Everybody in the cluster may be sent to; twice an item.
  __device__ __forceinline__ uint32_t Ready() const { return barriers + 224; }
  __device__ __forceinline__ uint32_t Received() const {
    return barriers + 232;
  }
  // What was sent has been read: the makers may have their tiles back.
  __device__ __forceinline__ uint32_t Summed() const { return barriers + 240; }
  // The makers have seen that. Where a block has no tiles nothing else holds
  // its multipliers back, and a second phase would hide the first from the
  // makers.
  __device__ __forceinline__ uint32_t Resumed() const { return barriers + 248; }

  __device__ __forceinline__ void InitBarriers() const {
    for (int i = 0; i < P::kKeyStages; ++i) {
      BarrierInit(KeyFull(i), kArrivingLanes);
      BarrierInit(KeyFree(i), kArrivingLanes *
                                  (P::kMakes ? kMakerWarps : kMultiplierWarps));
    }
    for (int i = 0; i < P::kValueStages; ++i) {
      BarrierInit(ValueFull(i), kArrivingLanes);
      BarrierInit(ValueFree(i), kArrivingLanes * kMultiplierWarps);
    }
    for (int i = 0; i < P::kMadeBuffers; ++i) {
      BarrierInit(MadeFull(i), kArrivingLanes * kMakerWarps);
      BarrierInit(MadeFree(i), kArrivingLanes * kMultiplierWarps);
    }
    BarrierInit(Ready(), kArrivingLanes * kParts * kMultiplierWarps);
    BarrierInit(Received(), 1);
    BarrierInit(Summed(), kArrivingLanes * kMultiplierWarps);
    BarrierInit(Resumed(), kArrivingLanes * kMakerWarps);
    BarrierInitFence();
  }

  uint32_t keys, values, region, barriers;
};

// One head of one row, and the part of its tokens that this block has.
struct Item {
  __device__ __forceinline__ Item(const Args& args, uint32_t index, int rank) {
    const LinearNoncausalParams& p = args.p;
    const uint32_t heads = args.heads;
    row = static_cast<int>(index / heads);
    head = static_cast<int>(index % heads);
    first_token = p.query_start[row];
    count = p.query_start[row + 1] - static_cast<int>(first_token);
    sink = p.states != nullptr && p.slots[row] <= 0;
    const int tiles = count <= 0 ? 0 : (count + kTokens - 1) / kTokens;
    first_tile = static_cast<int>(int64_t{rank} * tiles / kParts);
    part_tiles =
        static_cast<int>((rank + int64_t{1}) * tiles / kParts) - first_tile;
  }
  // Whether there is something to add up.
  __device__ __forceinline__ bool Works() const { return count > 0 && !sink; }
  // Tokens of tile `tile` of this part that exist, at most kTokens.
  __device__ __forceinline__ int Left(int tile) const {
    return count - (first_tile + tile) * kTokens;
  }
  __device__ __forceinline__ int64_t Token(int tile) const {
    return first_token + (first_tile + tile) * kTokens;
  }

  int row;
  int head;
  int64_t first_token;
  int count;
  bool sink;
  int first_tile;
  int part_tiles;
};

// Calls f(item) for what this cluster does, in order.
template <typename F>
__device__ __forceinline__ void ForItems(const Args& args, F f) {
  const int rank = linear_cluster::ClusterRank();
  const int rows =
      args.p.rows == nullptr ? static_cast<int>(args.p.max_rows) : *args.p.rows;
  const int64_t items = int64_t{rows} * args.heads;
  const int clusters = gridDim.x / kParts;
  for (int64_t i = blockIdx.x / kParts; i < items; i += clusters) {
    f(Item(args, static_cast<uint32_t>(i), rank));
  }
}

// One lane of a warp arrives, after what all have written or read.
__device__ __forceinline__ void WarpArrive(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 < kArrivingLanes) BarrierArrive(barrier);
}

}  // namespace linear_ring
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_SHARED_CUH_
