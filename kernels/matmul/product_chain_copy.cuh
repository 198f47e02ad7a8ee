// Shares of a block of product_chain.cu in each product, and their copies by
// the producer warps.
#ifndef RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_COPY_CUH_
#define RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_COPY_CUH_

#include <cuda.h>

#include <climits>

#include "kernels/common/async_copy.cuh"
#include "kernels/matmul/product_chain_cuda.h"
#include "kernels/matmul/product_chain_plan.h"
#include "kernels/matmul/product_chain_rows.cuh"

namespace recurve {
namespace chain {

constexpr int kCopyWarps = kChainCopyWarps;
static_assert((kCopyWarps & (kCopyWarps - 1)) == 0 && kCopyWarps < 4);
constexpr int kTile = kChainTile;
constexpr int kChunk = kChainChunk;
constexpr int kChunkBytes = kTile * kChunk * 2;
constexpr int kStageChunks = kChainStageChunks;
constexpr int kStageBytes = kChainStageBytes;
constexpr int kStageSteps = kStageChunks * kChunk / 16;  // of a tensor core
constexpr int kPhases = 4;
static_assert(kChainMostRoundsAhead <= 4);  // which CopyShare remembers

enum PhaseId { kOut, kUp, kDown, kNext };

// Words of a row.
constexpr int kHiddenWords = kChainMaxFeatures / 2;
constexpr int kRowWords = 2 * kProductChainMaxWidth + kHiddenWords;

struct ChainArgs {
  ProductChainParams p;
  CUtensorMap maps[kPhases];
  int chunks[kPhases];  // of the inputs
  int tiles[kPhases];
  int slots;                    // of the ring: stages
  int row_bytes;                // from row to row in shared memory
  uint32_t zero;                // 0, unknown to the compiler
  unsigned long long* tickets;  // taken by blocks, in all launches
  // Two sets of a launch's words: a value of the residual, or two gated
  // features.
  uint32_t* words;
};

// A block's share of a product: rounds of stages, one for each of `lanes`
// warps. A matrix in parts: a tile of 16 outputs, one part a warp. Otherwise:
// tiles of 8 features, one a warp.
struct Share {
  int tile;   // the first
  int lanes;  // warps with work; 0: none
  int rounds;
};

__device__ __forceinline__ Share ShareOf(const ChainArgs& a, int phase,
                                         int role, int late) {
  const int grid = static_cast<int>(gridDim.x);
  Share s = {};
  const int chunks = a.chunks[phase];
  const int tiles = a.tiles[phase];
  if (phase == kUp) {
    const ProductChainTiles own =
        ShareChainTiles(tiles, grid, a.tiles[kOut], late, role);
    s.tile = own.tile;
    s.lanes = own.count;
    s.rounds = (chunks + kStageChunks - 1) / kStageChunks;
    return s;
  }
  s.tile = phase == kNext
               ? ChainNextTile(tiles, grid, late, a.p.working.clusters, role)
               : role;
  s.lanes = s.tile >= 0 && s.tile < tiles ? kWarps : 0;
  s.rounds = ((chunks + kWarps - 1) / kWarps + kStageChunks - 1) / kStageChunks;
  return s;
}

__device__ __forceinline__ int PartBegin(int chunks, int part) {
  return chunks * part / kWarps;
}

// [chunk][half][row][64 inputs], swizzled by 128 bytes; halves and rows are a
// gate's two, or 16 rows. Evict-first in L2.
__device__ __forceinline__ void CopyStage(uint32_t to, const CUtensorMap& map,
                                          int row, int chunk,
                                          uint32_t barrier) {
  asm volatile(
      "{ .reg .b64 policy;"
      "  createpolicy.fractional.L2::evict_first.b64 policy, 1.0;"
      "  cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier"
      "::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %3, %5}], [%2], policy; }" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(0), "r"(row), "r"(chunk)
      : "memory");
}

// The stages of a consumer warp.
struct LaneCopies {
  int row;
  int chunk;
  int end;  // chunks
};
__device__ __forceinline__ LaneCopies LaneCopiesOf(const Share& share,
                                                   int chunks, bool up,
                                                   int lane) {
  if (up) return {(share.tile + lane) * (kTile / 2), 0, chunks};
  return {share.tile * kTile, PartBegin(chunks, lane),
          PartBegin(chunks, lane + 1)};
}

// Producer warp `copier` of kCopyWarps: copies the block's stages of all
// products that fall on each kCopyWarps-th slot of the ring buffer, so that a
// slot always has the same producer. `memory` is the ring buffer's; barriers
// are pairs, full and empty. released(): whether the previous kernel is done.
template <typename Released>
__device__ __forceinline__ void CopyShare(const ChainArgs& a, int role,
                                          int late, int copier, uint32_t memory,
                                          uint32_t barriers,
                                          const Released& released) {
  const auto full = [&](int slot) { return barriers + 16 * slot; };
  const auto empty = [&](int slot) { return barriers + 16 * slot + 8; };
  const ProductChainPace pace =
      ChainPace(a.p.working.clusters, static_cast<int>(a.p.rows));
  int base = 0, lap = 0;  // of the round's first stage
  uint64_t history = 0;   // of the last 4 rounds: slot and parity of a stage
  int done = 0;           // rounds
#pragma unroll 1
  for (int phase = 0; phase < kPhases; ++phase) {
    const Share share = ShareOf(a, phase, role, late);
    const CUtensorMap& map = a.maps[phase];
    // Blocks without a part of the first product may have started late. No
    // block waits for their rows before they have all of this product.
    const bool free = phase == kUp && role >= a.tiles[kOut];
#pragma unroll 1
    for (int round = 0; round < share.rounds; ++round) {
      int l = (copier - base) & (kCopyWarps - 1);  // slots are a multiple, too
      if (l < share.lanes) {
        const int ahead = !released()     ? pace.early
                          : free          ? INT_MAX
                          : phase == kOut ? pace.out
                          : phase == kUp  ? pace.up
                                          : pace.rest;
        if (done >= ahead) {
          const auto last = static_cast<uint32_t>(history >> 16 * (ahead - 1));
          BarrierWait(full((last & 0xffff) >> 1), last & 1);
        }
        ++done;
      }
      bool is_first = true;
#pragma unroll 1
      for (; l < share.lanes; l += kCopyWarps) {
        const LaneCopies copies =
            LaneCopiesOf(share, a.chunks[phase], phase == kUp, l);
        const int chunk = copies.chunk + round * kStageChunks;
        int slot = base + l;
        int my_lap = lap;
        if (slot >= a.slots) {
          slot -= a.slots;
          ++my_lap;
        }
        if (my_lap > 0) BarrierWait(empty(slot), (my_lap - 1) & 1);
        if (ElectLane()) {
          if (chunk < copies.end) {
            BarrierExpect(full(slot), kStageBytes);
            CopyStage(memory + slot * kStageBytes, map, copies.row, chunk,
                      full(slot));
          } else {
            BarrierArrive(full(slot));
          }
        }
        __syncwarp();
        if (is_first) {
          history =
              history << 16 | static_cast<uint32_t>(slot << 1 | (my_lap & 1));
        }
        is_first = false;
      }
      base += share.lanes;
      if (base >= a.slots) {
        base -= a.slots;
        ++lap;
      }
    }
  }
}

}  // namespace chain
}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_COPY_CUH_
