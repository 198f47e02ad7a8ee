// Shared by the warps of linear_noncausal_ring.cu: arguments, shared memory
// layout, items. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_SHARED_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_SHARED_CUH_

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/linear_attn/linear_boxes.cuh"
#include "kernels/linear_attn/linear_wgmma.cuh"
#include "kernels/linear_attn/noncausal/linear_noncausal_cuda.h"
#include "kernels/linear_attn/noncausal/linear_noncausal_deal.h"

namespace recurve {
namespace linear_ring {

using Bf16 = Half<__nv_bfloat16>;
using linear_boxes::Place;

constexpr int kTokens = 64;  // of a tile
constexpr int kFeatures = 128;
constexpr int kGroup = 128;
constexpr int kMultipliers = 2 * kGroup;  // one group for each 64 columns
constexpr int kMultiplierWarps = kMultipliers / 32;
constexpr int kMakerWarps = 4;
constexpr int kMakers = 32 * kMakerWarps;
constexpr int kTileBytes = wgmma::kTileBytes;
// Readers of items other than Multipliers and Makers: both Copiers, and the
// Storer.
constexpr int kOtherReaders = 3;
constexpr int kItemPlaces = 8;
constexpr int kItemBytes = 64;
// Rows whose tile counts are kept in shared memory. (More are slow: they are
// read one by one, repeatedly.)
constexpr int kRowsKept = 2048;
// Most blocks of a launch.
constexpr int kMaxBlocks = 160;
constexpr int kRawBytes = 2 * kTileBytes;  // of a tile of k, v, q or g

// Change of q or k before its encoding.
enum class Change { kNone, kSilu, kSoftmax };

// Counts of all launches so far. Begins as zeros.
struct Launches {
  uint32_t ended;
  uint32_t warps;  // of the current one that have ended
};

struct Args {
  LinearNoncausalParams p;
  // Boxes of 64 features of a head by kTokens tokens.
  CUtensorMap q, k, v, g, out;
  // Boxes of kStateColumns columns by all features of an encoding of a head.
  CUtensorMap state;
  int heads;
  int head_dim;
  int value_dim;
  Change q_change;
  Change k_change;
  // The workspace, with kNoncausalPlaces places for each block.
  Launches* launches;
  // Number of the launch that left S in a place: the count of earlier ones,
  // plus one. It only grows (for 2^32 launches), so nothing is reset.
  uint32_t* place_launches;
  uint4* factors;  // kFactorBytes at each place
};

// The three forms: factors as they are; made of each feature; and twice as many
// (cosines and sines).
enum class Form { kPlain, kMade, kCosine };

// The turn of each feature between neighbouring tokens, and twice the cosine of
// the Makers' turn.
constexpr int kAngleBytes = 12 * kFeatures;
// Multiplier of the outputs of each token of a tile of q, after softmax.
constexpr int kScaleBytes = 4 * kTokens;
// Barriers, and items.
constexpr int kBarrierBytes = 640 + kItemBytes * kItemPlaces;
static_assert(408 + 8 * kNoncausalPlaces <= 448 && 8 * kItemPlaces <= 64,
              "barriers lie next to each other: Layout");
// NoncausalShares.
constexpr int kShareNumbers = kMaxBlocks + 1;
constexpr int kDealBytes = 4 * (kRowsKept + 4 * kShareNumbers);

constexpr int kMaxStages = 8;  // of a ring

template <Form kForm>
struct Plan {
  static constexpr bool kMakes = kForm != Form::kPlain;
  static constexpr int kEncodings = kForm == Form::kCosine ? 2 : 1;
  static constexpr int kThreads =
      kMultipliers + (kMakes ? kMakers : 0) + kGroup;
  // Factors are made in place, and the sines of an encoding in separate
  // buffers.
  static constexpr int kSineBuffers = kForm == Form::kCosine ? 2 : 0;
  static constexpr int kKeyStages = 6;
  static constexpr int kValueStages = kForm == Form::kCosine ? 5 : 7;
  // S as an operand, between blocks: groups of four words, neighbouring
  // threads' adjacent.
  static constexpr int kFactorBytes = kEncodings * kFeatures * 128 * 2;
  static constexpr int kBytes =
      (kKeyStages + kValueStages + kSineBuffers) * kRawBytes + kBarrierBytes +
      kDealBytes + (kMakes ? kKeyStages * kScaleBytes : 0) +
      (kForm == Form::kCosine ? kAngleBytes : 0);
  static_assert(kBytes <= 227 * 1024, "");
  static_assert(kKeyStages <= kMaxStages && kValueStages <= kMaxStages, "");
};

// Addresses in a block's shared memory.
template <Form kForm>
struct Layout {
  using P = Plan<kForm>;
  __device__ __forceinline__ explicit Layout(uint32_t start)
      : keys(start),
        values(keys + P::kKeyStages * kRawBytes),
        sines(values + P::kValueStages * kRawBytes),
        barriers(sines + P::kSineBuffers * kRawBytes) {}

  // k, then q, and their factors: with an encoding its cosines.
  __device__ __forceinline__ uint32_t Key(int stage) const {
    return keys + stage * kRawBytes;
  }
  // v, then g, which outputs replace.
  __device__ __forceinline__ uint32_t Value(int stage) const {
    return values + stage * kRawBytes;
  }
  // The sines of the factors.
  __device__ __forceinline__ uint32_t Sine(int buffer) const {
    return sines + buffer * kRawBytes;
  }
  // Barriers.
  __device__ __forceinline__ uint32_t KeyFull(int stage) const {
    return barriers + 8 * stage;
  }
  __device__ __forceinline__ uint32_t KeyFree(int stage) const {
    return barriers + 64 + 8 * stage;
  }
  __device__ __forceinline__ uint32_t ValueFull(int stage) const {
    return barriers + 128 + 8 * stage;
  }
  __device__ __forceinline__ uint32_t ValueFree(int stage) const {
    return barriers + 192 + 8 * stage;
  }
  __device__ __forceinline__ uint32_t Made(int stage) const {
    return barriers + 256 + 8 * stage;
  }
  // Gated outputs of whole tiles have replaced the gates.
  __device__ __forceinline__ uint32_t OutFull(int stage) const {
    return barriers + 320 + 8 * stage;
  }
  __device__ __forceinline__ uint32_t SineFree(int buffer) const {
    return barriers + 384 + 8 * buffer;
  }

  // Items that the Dealer tells all other warps, which have no registers to
  // compute them.
  __device__ __forceinline__ uint32_t ItemFull(int place) const {
    return barriers + 448 + 8 * place;
  }
  __device__ __forceinline__ uint32_t ItemFree(int place) const {
    return barriers + 512 + 8 * place;
  }
  __device__ __forceinline__ uint32_t ItemWords(int place) const {
    return barriers + 640 + kItemBytes * place;
  }
  // S has been written to `place`: each once a launch.
  __device__ __forceinline__ uint32_t FactorLeft(uint32_t place) const {
    return barriers + 408 + 8 * (place % kNoncausalPlaces);
  }
  // Number of launches before this one.
  __device__ __forceinline__ uint32_t LaunchesBefore() const {
    return barriers + 400;
  }
  // Tile counts of rows; and the results of FindNoncausalShares.
  __device__ __forceinline__ uint32_t RowTiles() const {
    return barriers + kBarrierBytes;
  }
  __device__ __forceinline__ uint32_t Shares() const {
    return RowTiles() + 4 * kRowsKept;
  }

  // Multipliers of outputs of q's tile, if softmax leaves q̃ undivided: 1 / the
  // sum of each token.
  __device__ __forceinline__ uint32_t Scale(int stage, int token) const {
    return RowTiles() + kDealBytes + kScaleBytes * stage + 4 * token;
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
      BarrierInit(ItemFree(i), kArrivingLanes * (kMultiplierWarps +
                                                 (P::kMakes ? kMakerWarps : 0) +
                                                 kOtherReaders));
    }
    for (uint32_t i = 0; i < kNoncausalPlaces; ++i) {
      BarrierInit(FactorLeft(i), kArrivingLanes * kMultiplierWarps);
    }
    BarrierInitFence();
  }

  uint32_t keys, values, sines, barriers;
};

// Tiles of row `row`; 0 if there is nothing to sum.
__device__ __forceinline__ uint32_t TilesOfRow(const LinearNoncausalParams& p,
                                               uint32_t row) {
  // Loaded together.
  const int slot = p.states == nullptr ? 1 : p.slots[row];
  const int count = p.query_start[row + 1] - p.query_start[row];
  return slot <= 0 || count <= 0 ? 0 : (count + kTokens - 1u) / kTokens;
}
__device__ __forceinline__ uint32_t RowsInUse(const LinearNoncausalParams& p) {
  return p.rows == nullptr ? static_cast<uint32_t>(p.max_rows) : *p.rows;
}

// A work item on a head: tiles [begin, end) of k and v are summed, or outputs
// of q and g are made. These alternate: every second item is a sum, and the
// outputs after it are of the same head. Either may have no tiles.
struct Item {
  // Whether it exists: the last does not.
  __device__ __forceinline__ bool Works() const { return count > 0; }
  __device__ __forceinline__ int Tiles() const { return end - begin; }
  // For tile `tile` of the row: existing tokens, if less than kTokens; and the
  // first.
  __device__ __forceinline__ int Left(int tile) const {
    return count - tile * kTokens;
  }
  __device__ __forceinline__ int Token(int tile) const {
    return first_token + tile * kTokens;
  }

  int slot = 0;  // if states are kept
  int head = 0;
  int first_token = 0;
  int count = 0;  // of the row's tokens
  int begin = 0, end = 0;
};

// The thread's index, re-read: the compiler would compute all that depends on
// it at the start and, where registers are short, reload it from local memory,
// that is, from L2, as shared memory leaves next to no L1: 1,500 cycles under
// the copies' load.
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

// Item `which`.
template <Form kForm>
__device__ __forceinline__ Item Told(const Layout<kForm>& layout,
                                     uint32_t which) {
  const uint32_t words = layout.ItemWords(which % kItemPlaces);
  uint32_t x[4];
  ReadFour(words, x);
  uint64_t tiles;
  asm volatile("ld.shared.b64 %0, [%1];"
               : "=l"(tiles)
               : "r"(words + 16)
               : "memory");
  Item item;
  item.slot = Uniform(static_cast<int>(x[0]));
  item.head = Uniform(static_cast<int>(x[1]));
  item.first_token = Uniform(static_cast<int>(x[2]));
  item.count = Uniform(static_cast<int>(x[3]));
  item.begin = Uniform(static_cast<int>(tiles));
  item.end = Uniform(static_cast<int>(tiles >> 32));
  return item;
}
// For outputs: where S is read from, and where it is left; negative: this
// block's own, and nowhere.
template <Form kForm>
__device__ __forceinline__ void ToldPlaces(const Layout<kForm>& layout,
                                           uint32_t which, int* load,
                                           int* store) {
  uint64_t places;
  asm volatile("ld.shared.b64 %0, [%1];"
               : "=l"(places)
               : "r"(layout.ItemWords(which % kItemPlaces) + 32)
               : "memory");
  *load = Uniform(static_cast<int>(places));
  *store = Uniform(static_cast<int>(places >> 32));
}
// The number of a place once this launch has left S there.
template <Form kForm>
__device__ __forceinline__ uint32_t ThisLaunch(const Layout<kForm>& layout) {
  uint32_t launches;
  asm volatile("ld.shared.b32 %0, [%1];"
               : "=r"(launches)
               : "r"(layout.LaunchesBefore()));
  return launches + 1;
}
// The position of its row's first token.
template <Form kForm>
__device__ __forceinline__ int64_t ToldPosition(const Layout<kForm>& layout,
                                                uint32_t which) {
  int64_t position;
  asm volatile("ld.shared.b64 %0, [%1];"
               : "=l"(position)
               : "r"(layout.ItemWords(which % kItemPlaces) + 24)
               : "memory");
  return position;
}

// Pieces of S on the way to the row's state: kStateColumns columns by all
// features of an encoding, in the stage of a tile of v.
constexpr int kStateColumns = 32;
__device__ __forceinline__ int StatePieces(const Args& args) {
  return (args.value_dim + kStateColumns - 1) / kStateColumns;
}

// One lane of a warp arrives, after all its lanes' accesses.
__device__ __forceinline__ void WarpArrive(uint32_t barrier) {
  __syncwarp();
  if (kArrivingLanes == 32 || ElectLane()) BarrierArrive(barrier);
}

}  // namespace linear_ring
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_SHARED_CUH_
