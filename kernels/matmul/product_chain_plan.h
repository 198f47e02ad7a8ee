// Which products of a layer share one launch, and the layout of a block's
// shared memory. Pure functions of sizes.
#ifndef RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_PLAN_H_
#define RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_PLAN_H_

#include <algorithm>
#include <cstdint>

#include "kernels/common/host_device.h"
#include "kernels/matmul/decode_matmul_order.h"
#include "kernels/norm/norm_order.h"

namespace recurve {

// Sizes of LaunchProductChain's products; next_outputs is 0 without a fourth.
struct ProductChainShape {
  int64_t rows;
  int64_t width;
  int64_t out_inputs;
  int64_t features;
  int64_t up_inputs;
  int64_t down_inputs;
  int64_t next_outputs;
  int64_t next_inputs;
};

// The norm's sums are those of a whole block (norm.cu), in two groups of four
// columns a thread.
inline constexpr int64_t kProductChainMinWidth = kNormWarpCols + 1;
inline constexpr int64_t kProductChainMaxWidth = 2048;
// Rows are 1, 2 or 4. (Eight, the tensor core's column count, are faster
// product by product: every block reads all rows.)
inline constexpr int64_t kProductChainMaxRows = 4;

// Bytes of shared memory of a block on sm_90.
inline constexpr int64_t kProductChainSharedMemory = 227 * 1024;

// Steps of the copies: 16 outputs and 64 inputs.
inline constexpr int kChainTile = 16;
inline constexpr int kChainChunk = 64;
inline constexpr int kChainStageChunks = 2;
inline constexpr int kChainStageBytes =
    kChainStageChunks * kChainTile * kChainChunk * 2;
inline constexpr int kChainWarps = kDecodeMatmulMaxSplits;  // consumer warps
// Producer warps: stage i of the ring buffer belongs to warp
// i % kChainCopyWarps.
inline constexpr int kChainCopyWarps = 2;
// Rounds of copies in flight, of a stage for each warp with work: 2 rounds of 8
// stages are 64 KB; in the second product, where T6-XL has 5 warps with work, 3
// rounds are 60 KB. Other blocks' waits queue behind them: attention's reads,
// and the rows between products. A producer waits only for the first of its
// stages of a round. (Measured; docs/kernels/matmul.md.)
struct ProductChainPace {
  int early;  // before the previous kernel is done
  int out;    // of the first product
  int up;     // of the second
  int rest;   // of the others
};
// When the products begin, attention in clusters has requested nearly all its
// reads. With four rows, blocks wait longer for each other, and weights of the
// last products have time.
RECURVE_HOST_DEVICE constexpr ProductChainPace ChainPace(bool clusters,
                                                         int rows) {
  if (rows > 2) return {2, 2, 3, 1};
  return clusters ? ProductChainPace{2, 2, 4, 2} : ProductChainPace{1, 2, 3, 2};
}
inline constexpr int kChainMostRoundsAhead = 4;
// Rounds of a product whose weights wait for the rows in registers, so that
// others take their slots in the ring buffer. (One less with four rows.)
inline constexpr int kChainKeptRounds = 4;
// The ring buffer must not wrap to a stage before its copies have been waited
// for, by a parity that the slot's next copies would restore; nor within a
// product's kept stages. (A consumer also waits by parity where the slot's
// previous copy may have been another warp's: 32 later copies have arrived, so
// it is taken to have arrived.)
inline constexpr int kChainMinSlots =
    std::max(kChainMostRoundsAhead + 1, kChainKeptRounds) * kChainWarps;
// Features whose words an exchange holds.
inline constexpr int64_t kChainMaxFeatures = 24000;
// A part's last stage may be half or fully empty; the row is read beyond its
// end.
inline constexpr int kChainSlack = kChainStageChunks * kChainChunk * 2;

// Tiles of the second product of a block, from `tile` on.
struct ProductChainTiles {
  int tile;
  int count;  // up to kChainWarps
};

// Tiles of the block with this role, of `blocks`. Blocks below `first` have a
// part of the first product. The last `late` ones start when the previous
// kernel ends: if none has such a part, they have few tiles or none, since the
// others hold theirs by then. REQUIRES: tiles <= kChainWarps * blocks, 0 <
// first <= blocks.
RECURVE_HOST_DEVICE inline ProductChainTiles ShareChainTiles(
    int tiles, int blocks, int first, int late, int role) {
  const int each = tiles / first;
  const int rest = tiles - each * first;
  const int others = blocks - first;
  if (late > 0 && late <= others && each <= kChainWarps &&
      rest <= kChainWarps * others) {
    if (role < first) return {role * each, each};
    // The other blocks that are not late, if they suffice.
    int sharers = others - late;
    if (rest > kChainWarps * sharers) sharers = others;
    const int most = sharers == 0 ? 0 : (rest + sharers - 1) / sharers;
    const int before = most * (role - first);
    const int left = rest - before;
    const int count = left < 0 ? 0 : left < most ? left : most;
    return {count == 0 ? 0 : each * first + before, count};
  }
  // Evenly, one more for the last ones.
  const int few = tiles / blocks;
  const int more = role - (blocks - tiles % blocks);
  return {role * few + (more > 0 ? more : 0), few + (more >= 0 ? 1 : 0)};
}

// The tile of the fourth product of the block with this role; none if not in
// [0, tiles). The last blocks have one. After clusters late ones have none if
// the others suffice: then they end early, and their multiprocessors, which the
// previous clusters had, are free together for the next ones. REQUIRES: tiles
// <= blocks.
RECURVE_HOST_DEVICE inline int ChainNextTile(int tiles, int blocks, int late,
                                             bool clusters, int role) {
  const int early = late <= blocks - tiles ? blocks - late : tiles;
  return role - ((clusters ? early : blocks) - tiles);
}

// Layout of a block's memory. slots is 0 if the products are not one launch.
struct ProductChainPlan {
  int slots;      // of the ring: stages
  int row_bytes;  // between rows to multiply
  int64_t bytes;
};

inline ProductChainPlan PlanProductChain(const ProductChainShape& s,
                                         int64_t multiprocessors,
                                         int64_t shared_memory) {
  const auto chunked = [](int64_t inputs) {
    return inputs > 0 && inputs % kChainChunk == 0;
  };
  const auto tiles = [](int64_t outputs) {
    return (outputs + kChainTile - 1) / kChainTile;
  };
  // A block has at most one tile of a product in parts, and one gate tile for
  // each of its warps.
  const bool next = s.next_outputs > 0;
  if (s.rows < 1 || s.rows > kProductChainMaxRows ||
      (s.rows & (s.rows - 1)) != 0 || s.width < kProductChainMinWidth ||
      s.width > kProductChainMaxWidth || s.up_inputs > kProductChainMaxWidth ||
      s.up_inputs < s.width || s.features > kChainMaxFeatures ||
      !chunked(s.out_inputs) || !chunked(s.up_inputs) ||
      !chunked(s.down_inputs) ||
      DecodeMatmulSplits(s.width, s.out_inputs) == 1 ||
      DecodeMatmulSplits(2 * s.features, s.up_inputs) != 1 ||
      tiles(s.width) > multiprocessors ||
      tiles(2 * s.features) > kChainWarps * multiprocessors ||
      (next &&
       (DecodeMatmulSplits(s.next_outputs, s.next_inputs) == 1 ||
        !chunked(s.next_inputs) || s.next_inputs > kProductChainMaxWidth ||
        s.next_inputs < s.width || tiles(s.next_outputs) > multiprocessors))) {
    return {};
  }
  ProductChainPlan plan = {};
  // Several rows begin in different banks: inputs are multiples of 64.
  const int64_t row_bytes =
      2 * std::max({s.out_inputs, s.up_inputs, s.down_inputs,
                    next ? s.next_inputs : 0}) +
      kChainSlack + (s.rows > 1 ? 16 : 0);
  // Sums of the parts, of the norm, and the ticket.
  const int64_t rest =
      s.rows * (row_bytes + 4 * kChainWarps * (kChainTile + 1)) + 16;
  const int64_t slots = (shared_memory - rest) / (kChainStageBytes + 16) /
                        kChainCopyWarps * kChainCopyWarps;
  if (shared_memory <= rest || slots < kChainMinSlots) return {};
  plan.slots = static_cast<int>(slots);
  plan.row_bytes = static_cast<int>(row_bytes);
  plan.bytes = rest + slots * (kChainStageBytes + 16);
  return plan;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_PLAN_H_
