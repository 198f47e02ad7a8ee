// Which products of a layer are one launch, and how a block's shared memory is
// divided. Pure code: sizes in, a plan out.
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

// The norm's sums are those of a whole block (norm.cu), by fours, twice.
inline constexpr int64_t kProductChainMinWidth = kNormWarpCols + 1;
inline constexpr int64_t kProductChainMaxWidth = 2048;
// Rows are 1, 2 or 4. (Eight, as many as a tensor core has columns, are faster
// product by product: every block reads all rows.)
inline constexpr int64_t kProductChainMaxRows = 4;

// Of 16 outputs and of 64 inputs, which are the steps of the copies.
inline constexpr int kChainTile = 16;
inline constexpr int kChainChunk = 64;
inline constexpr int kChainStageChunks = 2;
inline constexpr int kChainStageBytes =
    kChainStageChunks * kChainTile * kChainChunk * 2;
inline constexpr int kChainWarps = kDecodeMatmulMaxSplits;  // that multiply
// Warps that copy: stage i of the ring is warp i % kChainCopyWarps's.
inline constexpr int kChainCopyWarps = 2;
// Rounds of copies under way, of a stage for each warp with work: of 8 stages,
// 64 KB for 2; in the second product, where T6-XL has 5 warps with work, 60 KB
// for 3. What others wait for stands behind them: what attention reads, and the
// rows between products. A warp that copies waits for the first of its stages
// of a round only. (Measured; docs/kernels/matmul.md.)
struct ProductChainPace {
  int early;  // before the kernel in front is done
  int out;    // of the first product
  int up;     // of the second
  int rest;   // of the others
};
// Attention in clusters has asked for nearly all that it reads when the
// products begin. Of four rows, blocks wait for each other longer, and weights
// of the last products have time.
RECURVE_HOST_DEVICE constexpr ProductChainPace ChainPace(bool clusters,
                                                         int rows) {
  if (rows > 2) return {2, 2, 3, 1};
  return clusters ? ProductChainPace{2, 2, 4, 2} : ProductChainPace{1, 2, 3, 2};
}
inline constexpr int kChainMostRoundsAhead = 4;
// Rounds of a product whose weights wait for the rows in registers, so that
// others take their places in the ring. (Of four rows one less.)
inline constexpr int kChainKeptRounds = 4;
// The ring must not come round to a stage before its copies have been waited
// for, by a parity that the next copies there would bring back; and what is
// kept of a product is not to come round either. (Who multiplies waits for a
// stage by parity, too, where the copy before to that place may have been for
// another warp: it is taken to have come by then, as 32 later ones have.)
inline constexpr int kChainMinSlots =
    std::max(kChainMostRoundsAhead + 1, kChainKeptRounds) * kChainWarps;
// Features whose words an exchange holds.
inline constexpr int64_t kChainMaxFeatures = 24000;
// Where a part's last stage is half or all empty, the row is read beyond its
// end.
inline constexpr int kChainSlack = kChainStageChunks * kChainChunk * 2;

// Tiles of the second product that a block has, from `tile` on.
struct ProductChainTiles {
  int tile;
  int count;  // up to kChainWarps
};

// Those of the block with this role, of `blocks`. Blocks below `first` have a
// part of the first product. The last `late` ones begin when the kernel in
// front ends: if none of these has such a part, they have few tiles or none,
// since the others have theirs in registers and shared memory by then.
// REQUIRES: tiles <= kChainWarps * blocks, 0 < first <= blocks.
RECURVE_HOST_DEVICE inline ProductChainTiles ShareChainTiles(
    int tiles, int blocks, int first, int late, int role) {
  const int each = tiles / first;
  const int rest = tiles - each * first;
  const int others = blocks - first;
  if (late > 0 && late <= others && each <= kChainWarps &&
      rest <= kChainWarps * others) {
    if (role < first) return {role * each, each};
    // The others that are not late, if they can.
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

// The tile of the fourth product that the block with this role has; none if it
// is not in [0, tiles). The last blocks have one. Beside clusters late ones
// have none, as far as the others are enough: they have little else, so they
// end early, and their multiprocessors, which the clusters in front had, are
// free together for the next ones. REQUIRES: tiles <= blocks.
RECURVE_HOST_DEVICE inline int ChainNextTile(int tiles, int blocks, int late,
                                             bool clusters, int role) {
  const int early = late <= blocks - tiles ? blocks - late : tiles;
  return role - ((clusters ? early : blocks) - tiles);
}

// How a block's memory is divided. slots is 0 if the products are not one
// launch.
struct ProductChainPlan {
  int slots;      // of the ring: stages
  int row_bytes;  // from row to row of those that are multiplied
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
  // A block has at most one tile of a product in parts, and one of gates for
  // each of its warps.
  const bool next = s.next_outputs > 0;
  if (s.rows < 1 || s.rows > kProductChainMaxRows ||
      (s.rows & (s.rows - 1)) != 0 || s.width < kProductChainMinWidth ||
      s.width > kProductChainMaxWidth || s.up_inputs > kProductChainMaxWidth ||
      s.up_inputs < s.width || s.features > kChainMaxFeatures ||
      !chunked(s.out_inputs) || !chunked(s.up_inputs) ||
      !chunked(s.down_inputs) || DecodeMatmulSplits(s.width) == 1 ||
      DecodeMatmulSplits(2 * s.features) != 1 ||
      tiles(s.width) > multiprocessors ||
      tiles(2 * s.features) > kChainWarps * multiprocessors ||
      (next &&
       (DecodeMatmulSplits(s.next_outputs) == 1 || !chunked(s.next_inputs) ||
        s.next_inputs > kProductChainMaxWidth || s.next_inputs < s.width ||
        tiles(s.next_outputs) > multiprocessors))) {
    return {};
  }
  ProductChainPlan plan = {};
  // Several begin in different banks: inputs are multiples of 64.
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
