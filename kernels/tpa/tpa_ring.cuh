// The factors' way into shared memory: one warp copies, the others compute.
#ifndef RECURVE_KERNELS_TPA_TPA_RING_CUH_
#define RECURVE_KERNELS_TPA_TPA_RING_CUH_

#include "kernels/common/async_copy.cuh"
#include "kernels/tpa/tpa_decode.cuh"

namespace recurve {

// A ring of stages, each holding the keys (or values) of one rank and tile of
// 64 tokens as they lie in the page: A [64, a_width], then B [64, b_width].
// Items come in the order of tiles; within a tile keys by rank, then values by
// rank.
class TpaRing {
 public:
  __device__ TpaRing(const TpaDecodeArgs& args, uint32_t base,
                     uint32_t barriers)
      : base_(base),
        barriers_(barriers),
        stages_(args.stages),
        stage_bytes_(args.stage_bytes) {}

  // By one thread, before the block's first barrier.
  __device__ void Init(int consumer_warps, bool bulk_copies) const {
    for (int i = 0; i < stages_; ++i) {
      BarrierInit(barriers_ + 16 * i, bulk_copies ? 1 : 64);
      BarrierInit(barriers_ + 16 * i + 8, consumer_warps);
    }
    BarrierInitFence();
  }

  __device__ uint32_t stage() const { return base_ + stage_ * stage_bytes_; }
  __device__ uint32_t full() const { return barriers_ + 16 * stage_; }
  __device__ uint32_t empty() const { return barriers_ + 16 * stage_ + 8; }
  __device__ void Next() {
    if (++stage_ == stages_) {
      stage_ = 0;
      phase_ ^= 1;
    }
  }

  __device__ void WaitFull() const { BarrierWait(full(), phase_); }
  __device__ void WaitEmpty() const { BarrierWait(empty(), phase_ ^ 1); }
  // By each consumer warp once it has read the stage.
  __device__ void Release() const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) BarrierArrive(empty());
  }

 private:
  uint32_t base_;
  uint32_t barriers_;  // [stages] pairs: full, empty
  int stages_;
  int stage_bytes_;
  int stage_ = 0;
  uint32_t phase_ = 0;
};

// All lanes copy `bytes` by 16.
__device__ __forceinline__ void CopyRun(uint32_t to, const char* from,
                                        int bytes) {
  for (int i = 16 * (threadIdx.x % 32); i < bytes; i += 512) {
    CopyAsync16(to + i, from + i);
  }
}

// Fills the next stage with the first `tokens` of 64 rows of both planes. Rows
// of values beyond them become zeros: their weight is zero, but memory that
// nobody wrote may hold a NaN.
__device__ __forceinline__ void FillStage(const TpaDecodeArgs& args,
                                          TpaRing& ring, const char* from,
                                          int b_width, int tokens,
                                          bool values) {
  const int lane = threadIdx.x % 32;
  const int a_row = 2 * static_cast<int>(args.layout.a_width);
  const int b_row = 2 * b_width;
  const int a_plane = static_cast<int>(kTpaPageTokens) * a_row;
  const uint32_t to = ring.stage();
  ring.WaitEmpty();
  if (values && tokens < kTpaPageTokens) {
    for (int i = tokens * b_row + 16 * lane; i < kTpaPageTokens * b_row;
         i += 512) {
      asm volatile(
          "st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to + a_plane + i),
          "r"(0)
          : "memory");
    }
    if (args.bulk_copies) BulkCopyFence();
    __syncwarp();
  }
  if (!args.bulk_copies) {
    CopyRun(to, from, tokens * a_row);
    CopyRun(to + a_plane, from + a_plane, tokens * b_row);
    BarrierArriveAfterCopies(ring.full());
    BarrierArrive(ring.full());  // for the zeros
  } else if (lane == 0) {
    BarrierExpect(ring.full(), tokens * (a_row + b_row));
    if (tokens == kTpaPageTokens) {
      BulkCopy(to, from, a_plane + kTpaPageTokens * b_row, ring.full());
    } else {
      BulkCopy(to, from, tokens * a_row, ring.full());
      BulkCopy(to + a_plane, from + a_plane, tokens * b_row, ring.full());
    }
  }
  __syncwarp();
  ring.Next();
}

// The copying warp: all tiles of a block's range.
__device__ __forceinline__ void CopyTiles(const TpaDecodeArgs& args,
                                          const TpaRange& range, TpaRing ring) {
  const TpaCudaDecodeParams& p = args.p;
  const int lane = threadIdx.x % 32;
  const int kv_rank = static_cast<int>(p.shape.kv_rank);
  for (int row = range.first_row; row <= range.last_row && row < p.rows;
       ++row) {
    const int length = RowLength(args, row);
    const int begin = range.ChunkBegin(row);
    const int end = range.ChunkEnd(row, TpaChunkCount(length));
    if (begin >= end) continue;
    const int first_tile = TpaChunkBegin(begin) / 64;
    const int last_tile = (min(TpaChunkBegin(end), length) + 63) / 64;
    const int32_t* table = p.cache.page_table + row * p.cache.page_table_stride;
    int page_of_lane = 0;
    for (int tile = first_tile; tile < last_tile; ++tile) {
      const int ahead = (tile - first_tile) % 32;
      if (ahead == 0 && tile + lane < last_tile) {
        page_of_lane = table[tile + lane];
      }
      const int64_t page = __shfl_sync(0xffffffffu, page_of_lane, ahead);
      const char* from = static_cast<const char*>(p.cache.pages) +
                         2 * page * p.cache.page_stride;
      const int tokens = min(64, length - 64 * tile);
      for (int r = 0; r < kv_rank; ++r) {
        FillStage(args, ring, from + 2 * r * args.layout.k_block,
                  static_cast<int>(args.layout.b_k_width), tokens, false);
      }
      for (int r = 0; r < kv_rank; ++r) {
        FillStage(args, ring,
                  from + 2 * (args.layout.values + r * args.layout.v_block),
                  static_cast<int>(args.layout.b_v_width), tokens, true);
      }
    }
  }
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_TPA_RING_CUH_
