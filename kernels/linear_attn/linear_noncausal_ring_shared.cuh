// What the groups of threads of non-causal linear attention share. Device code
// only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_SHARED_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_SHARED_CUH_

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/linear_attn/linear_boxes.cuh"
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
constexpr int kMultiplierWarps = kMultipliers / 32;
constexpr int kMakerWarps = 4;
constexpr int kMakers = 32 * kMakerWarps;
constexpr int kTileBytes = wgmma::kTileBytes;
constexpr int kItemPlaces = 4;
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
  CUtensorMap q, k, v, g, out;
  int heads;
  int head_dim;
  int value_dim;
  Change q_change;
  Change k_change;
};

// The three forms: factors as they are; made of each feature; and twice as many
// (cosines and sines).
enum class Form { kPlain, kMade, kCosine };

// Of each feature the turn from a token to the next, and the cosine of the turn
// that makers go by, twice.
constexpr int kAngleBytes = 12 * kFeatures;
// Of each token of a tile of q what outputs are multiplied by, after softmax.
constexpr int kScaleBytes = 4 * kTokens;
// Sums of a feature in shared memory: four more than 128, so that eight
// features of eight columns are in different banks.
constexpr int kStateRowBytes = 4 * (128 + 4);
// Barriers, and what is told of items.
constexpr int kBarrierBytes = 384 + 32 * kItemPlaces;

template <Form kForm>
struct Plan {
  static constexpr bool kMakes = kForm != Form::kPlain;
  static constexpr int kEncodings = kForm == Form::kCosine ? 2 : 1;
  static constexpr int kThreads =
      kMultipliers + (kMakes ? kMakers : 0) + kGroup;
  // Factors are made in the place of what they are made of, and the sines of an
  // encoding beside it.
  static constexpr int kSineBuffers = kForm == Form::kCosine ? 2 : 0;
  static constexpr int kKeyStages = kForm == Form::kCosine ? 3 : 5;
  static constexpr int kValueStages = kForm == Form::kCosine ? 3 : 4;
  // k and q come by a warp of their own, which does not wait for room for v and
  // g. With cosines it would only run ahead of those who make, and what comes
  // early is in the way of what blocks send each other.
  static constexpr bool kCopiesApart = kForm != Form::kCosine;
  // A thread's part of what one block adds up, in fours of numbers.
  static constexpr int kShare = 4 * kEncodings;
  // The same in sixteens of bytes, as parts are sent and as the sums are.
  // With cosines and sines, parts are sent as bfloat16: factors were rounded to
  // it before, and blocks give each other 16 bytes a cycle, whatever they ask.
  static constexpr bool kRoundParts = kForm == Form::kCosine;
  static constexpr int kPartPieces = kRoundParts ? kShare / 2 : kShare;
  static constexpr int kSumPieces = kShare / 2;
  // With cosines and sines the state leaves from where parts were; half of that
  // is written sooner than blocks tell each other that it has been read.
  static constexpr bool kStagesState = kForm == Form::kCosine;
  static constexpr int kOwnFeatures = kEncodings * kFeatures / kParts;
  static constexpr int kPieceBytes = kMultipliers * 16;  // of all threads
  static constexpr int kPartBytes = (kParts - 1) * kPartPieces * kPieceBytes;
  static constexpr int kSumBytes = (kParts - 1) * kSumPieces * kPieceBytes;
  static constexpr int kBytes = (kKeyStages + kValueStages) * kRawBytes +
                                kSineBuffers * kRawBytes + kPartBytes +
                                kSumBytes + kBarrierBytes +
                                (kMakes ? kKeyStages * kScaleBytes : 0) +
                                (kForm == Form::kCosine ? kAngleBytes : 0);
  static_assert(kBytes <= 227 * 1024, "");
  static_assert(kOwnFeatures * kStateRowBytes <= kPartBytes, "");
  static_assert(kKeyStages <= 5 && kValueStages <= 4, "");
};

// Addresses in a block's shared memory, the same in every block of a cluster.
template <Form kForm>
struct Layout {
  using P = Plan<kForm>;
  __device__ __forceinline__ explicit Layout(uint32_t start)
      : keys(start),
        values(keys + P::kKeyStages * kRawBytes),
        sines(values + P::kValueStages * kRawBytes),
        parts(sines + P::kSineBuffers * kRawBytes),
        sums(parts + P::kPartBytes),
        barriers(sums + P::kSumBytes) {}

  // k, then q, and what is made of them: with an encoding its cosines.
  __device__ __forceinline__ uint32_t Key(int stage) const {
    return keys + stage * kRawBytes;
  }
  // v, then g, whose place outputs take.
  __device__ __forceinline__ uint32_t Value(int stage) const {
    return values + stage * kRawBytes;
  }
  // The sines beside them.
  __device__ __forceinline__ uint32_t Sine(int buffer) const {
    return sines + buffer * kRawBytes;
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
  __device__ __forceinline__ uint32_t Made(int stage) const {
    return barriers + 192 + 8 * stage;
  }
  __device__ __forceinline__ uint32_t SineFree(int buffer) const {
    return barriers + 240 + 8 * buffer;
  }
  // Others' parts of S are here, and the sums of others.
  __device__ __forceinline__ uint32_t PartsFull() const {
    return barriers + 256;
  }
  __device__ __forceinline__ uint32_t SumsFull() const {
    return barriers + 264;
  }
  // Every block in the cluster has read the sums of others.
  __device__ __forceinline__ uint32_t SumsFree() const {
    return barriers + 272;
  }

  // Gated outputs of whole tiles have taken the place of the gates.
  __device__ __forceinline__ uint32_t OutFull(int stage) const {
    return barriers + 352 + 8 * stage;
  }

  // This block's sums are where its parts were; and every block's state has
  // been read from there.
  __device__ __forceinline__ uint32_t StateFull() const {
    return barriers + 40;
  }
  __device__ __forceinline__ uint32_t PartsFree() const {
    return barriers + 280;
  }
  // One of the features whose state this block writes.
  __device__ __forceinline__ uint32_t State(int feature) const {
    return parts + feature * kStateRowBytes;
  }

  // Items as the warp that copies k and q tells all others of them, which have
  // no registers for what global memory takes long to answer.
  __device__ __forceinline__ uint32_t ItemFull(int place) const {
    return barriers + 288 + 8 * place;
  }
  __device__ __forceinline__ uint32_t ItemFree(int place) const {
    return barriers + 320 + 8 * place;
  }
  __device__ __forceinline__ uint32_t ItemWords(int place) const {
    return barriers + 384 + 32 * place;
  }

  // What outputs of q's tile are multiplied by, where q̃ is left a sum too
  // large by softmax: 1 / the sum of each token.
  __device__ __forceinline__ uint32_t Scale(int stage, int token) const {
    return barriers + kBarrierBytes + kScaleBytes * stage + 4 * token;
  }

  // Angles, with cosines; see kAngleBytes.
  __device__ __forceinline__ uint32_t Turn(int feature) const {
    return Scale(P::kKeyStages, 0) + 8 * feature;
  }
  __device__ __forceinline__ uint32_t Step(int feature) const {
    return Turn(kFeatures) + 4 * feature;
  }

  __device__ __forceinline__ void InitBarriers() const {
    for (int i = 0; i < P::kKeyStages; ++i) {
      BarrierInit(KeyFull(i), kArrivingLanes);
      BarrierInit(KeyFree(i), kArrivingLanes * kMultiplierWarps);
      BarrierInit(Made(i), kArrivingLanes * kMakerWarps);
    }
    for (int i = 0; i < P::kValueStages; ++i) {
      BarrierInit(ValueFull(i), kArrivingLanes);
      BarrierInit(ValueFree(i), kArrivingLanes * kMultiplierWarps);
      BarrierInit(OutFull(i), kArrivingLanes * kMultiplierWarps);
    }
    for (int i = 0; i < P::kSineBuffers; ++i) {
      BarrierInit(SineFree(i), kArrivingLanes * kMultiplierWarps);
    }
    for (int i = 0; i < kItemPlaces; ++i) {
      BarrierInit(ItemFull(i), kArrivingLanes);
      BarrierInit(
          ItemFree(i),
          kArrivingLanes * (kMultiplierWarps + (P::kMakes ? kMakerWarps : 0) +
                            1 + (P::kCopiesApart ? 1 : 0)));
    }
    BarrierInit(StateFull(), kArrivingLanes * kMultiplierWarps);
    BarrierInit(PartsFree(), kArrivingLanes * kParts);
    BarrierInit(PartsFull(), 1);
    BarrierInit(SumsFull(), 1);
    BarrierInit(SumsFree(), kArrivingLanes * kParts * kMultiplierWarps);
    BarrierInitFence();
  }

  uint32_t keys, values, sines, parts, sums, barriers;
};

// One head of one row. What follows from these numbers and the block's rank is
// not kept.
struct Item {
  Item() = default;
  __device__ __forceinline__ Item(const Args& args, uint32_t index) {
    const LinearNoncausalParams& p = args.p;
    const uint32_t heads = args.heads;
    const int row = static_cast<int>(index / heads);
    head = static_cast<int>(index % heads);
    first_token = Uniform(p.query_start[row]);
    count = Uniform(p.query_start[row + 1]) - first_token;
    if (p.states != nullptr) slot = Uniform(p.slots[row]);
    if (p.positions != nullptr) position = p.positions[row];
    if (p.states != nullptr && slot <= 0) count = -count;
  }
  // Whether there are outputs, and nothing else.
  __device__ __forceinline__ bool InSink() const { return count < 0; }
  // Whether there is something to add up.
  __device__ __forceinline__ bool Works() const { return count > 0; }
  // The part of its tokens that this block has.
  __device__ __forceinline__ int FirstTile() const {
    return TileOfPart(cluster::ClusterRank());
  }
  __device__ __forceinline__ int PartTiles() const {
    const int rank = cluster::ClusterRank();
    return TileOfPart(rank + 1) - TileOfPart(rank);
  }
  __device__ __forceinline__ int TileOfPart(int part) const {
    const uint32_t tiles = (abs(count) + kTokens - 1u) / kTokens;
    return static_cast<int>(part * tiles / kParts);
  }
  // Tokens of tile `tile` of this part that exist, at most kTokens.
  __device__ __forceinline__ int Left(int tile) const {
    return abs(count) - (FirstTile() + tile) * kTokens;
  }
  __device__ __forceinline__ int Token(int tile) const {
    return first_token + (FirstTile() + tile) * kTokens;
  }

  int slot = 0;  // if states are kept
  int head = 0;
  int first_token = 0;
  int count = 0;         // of tokens; negative in the sink
  int64_t position = 0;  // of the first token
};

// What this cluster does, in order.
class Items {
 public:
  __device__ __forceinline__ explicit Items(const Args& a)
      : args_(a),
        index_(blockIdx.x / kParts),
        end_(static_cast<uint32_t>(Uniform(a.p.rows == nullptr
                                               ? static_cast<int>(a.p.max_rows)
                                               : *a.p.rows)) *
             a.heads) {}
  __device__ __forceinline__ bool AtEnd() const { return index_ >= end_; }
  __device__ __forceinline__ Item Take() {
    const Item item(args_, index_);
    index_ += gridDim.x / kParts;
    return item;
  }
  // The next that Works, or none.
  __device__ __forceinline__ Item TakeWork() {
    while (!AtEnd()) {
      const Item item = Take();
      if (item.Works()) return item;
    }
    return Item();
  }

 private:
  const Args& args_;
  uint32_t index_;
  uint32_t end_;
};

// The thread's number, read anew: the compiler would keep all that follows from
// it from the beginning on and, where registers are short, read it back from
// local memory, that is, from the second-level cache, as shared memory leaves
// next to no first level: 1,500 cycles beside the copies.
__device__ __forceinline__ uint32_t ThreadAnew() {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

__device__ __forceinline__ void ReadFour(uint32_t from, uint32_t (&x)[4]) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "+r"(x[0]), "+r"(x[1]), "+r"(x[2]), "+r"(x[3])
               : "r"(from)
               : "memory");
}

// What was told of item `which`, but for its position.
template <Form kForm>
__device__ __forceinline__ Item Told(const Layout<kForm>& layout,
                                     uint32_t which) {
  uint32_t x[4];
  ReadFour(layout.ItemWords(which % kItemPlaces), x);
  Item item;
  item.slot = Uniform(static_cast<int>(x[0]));
  item.head = Uniform(static_cast<int>(x[1]));
  item.first_token = Uniform(static_cast<int>(x[2]));
  item.count = Uniform(static_cast<int>(x[3]));
  return item;
}
template <Form kForm>
__device__ __forceinline__ int64_t ToldPosition(const Layout<kForm>& layout,
                                                uint32_t which) {
  int64_t position;
  asm volatile("ld.shared.b64 %0, [%1];"
               : "=l"(position)
               : "r"(layout.ItemWords(which % kItemPlaces) + 16)
               : "memory");
  return position;
}

// One lane of a warp arrives, after what all have written or read.
__device__ __forceinline__ void WarpArrive(uint32_t barrier) {
  __syncwarp();
  if (kArrivingLanes == 32 || ElectLane()) BarrierArrive(barrier);
}

}  // namespace linear_ring
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_SHARED_CUH_
