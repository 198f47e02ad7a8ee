// The factors' way into shared memory: one warp copies, the others compute.
#ifndef RECURVE_KERNELS_TPA_TPA_RING_CUH_
#define RECURVE_KERNELS_TPA_TPA_RING_CUH_

#include "kernels/common/async_copy.cuh"
#include "kernels/tpa/tpa_decode.cuh"

namespace recurve {

// Lanes of a warp that arrive at a barrier for it, after __syncwarp. One is
// enough; compute-sanitizer's racecheck follows only what each thread does for
// itself, so a build for it has them all arrive.
#ifdef RECURVE_RACECHECK
inline constexpr int kArrivingLanes = 32;
#else
inline constexpr int kArrivingLanes = 1;
#endif

// A ring of stages, each holding the keys (or values) of one rank and page as
// they lie in memory: A [64, a_width], then B [64, b_width]. They come in the
// order of tiles, which are a page or two; within a tile first keys, then
// values; of these by rank; of a rank by page. A tile's second page may not
// exist.
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
      BarrierInit(barriers_ + 16 * i, bulk_copies ? kArrivingLanes : 64);
      BarrierInit(barriers_ + 16 * i + 8, kArrivingLanes * consumer_warps);
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

  // Of the stage `ahead` of the next.
  __device__ uint32_t WaitFull(int ahead) const {
    int stage = stage_ + ahead;
    uint32_t phase = phase_;
    if (stage >= stages_) {
      stage -= stages_;
      phase ^= 1;
    }
    BarrierWait(barriers_ + 16 * stage, phase);
    return base_ + stage * stage_bytes_;
  }
  __device__ void WaitEmpty() const { BarrierWait(empty(), phase_ ^ 1); }
  // By each consumer warp once it has read the stage (and met in __syncwarp).
  __device__ void Release() {
    if (threadIdx.x % 32 < kArrivingLanes) BarrierArrive(empty());
    Next();
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
  } else if (lane < kArrivingLanes && (lane > 0 || tokens == 0)) {
    BarrierArrive(ring.full());
  } else if (lane == 0) {
    BarrierExpect(ring.full(), tokens * (a_row + b_row));
    BulkCopy(to, from, tokens * a_row, ring.full());
    BulkCopy(to + a_plane, from + a_plane, tokens * b_row, ring.full());
  }
  __syncwarp();
  ring.Next();
}

// The copying warp: all tiles of a block's range.
template <int kPages>
__device__ __forceinline__ void CopyTiles(const TpaDecodeArgs& args,
                                          const TpaRange& range, TpaRing ring) {
  const TpaCudaDecodeParams& p = args.p;
  const int lane = threadIdx.x % 32;
  const int kv_rank = static_cast<int>(p.shape.kv_rank);
#pragma unroll 1
  for (int row = range.first_row; row <= range.last_row && row < p.rows;
       ++row) {
    const int length = RowLength(args, row);
    const int begin = range.ChunkBegin(row);
    const int end = range.ChunkEnd(row, TpaChunkCount(length));
    if (begin >= end) continue;
    const int first_page = TpaChunkBegin(begin) / 64;
    const int last_page = (min(TpaChunkBegin(end), length) + 63) / 64;
    const int32_t* table = p.cache.page_table + row * p.cache.page_table_stride;
    int page_of_lane = 0;
#pragma unroll 1
    for (int first = first_page; first < last_page; first += kPages) {
      const int ahead = (first - first_page) % 32;
      if (ahead == 0 && first + lane < last_page) {
        page_of_lane = table[first + lane];
      }
      // Keys, then values; each by rank, of a rank by page.
#pragma unroll 1
      for (int item = 0; item < 2 * kv_rank * kPages; ++item) {
        const int page = item % kPages;
        const int part = item / kPages;
        const bool values = part >= kv_rank;
        const int r = values ? part - kv_rank : part;
        const int64_t id = __shfl_sync(0xffffffffu, page_of_lane, ahead + page);
        const char* from =
            static_cast<const char*>(p.cache.pages) +
            2 * (id * p.cache.page_stride +
                 (values ? args.layout.values + r * args.layout.v_block
                         : r * args.layout.k_block));
        const int tokens = max(0, min(64, length - 64 * (first + page)));
        FillStage(args, ring, from,
                  static_cast<int>(values ? args.layout.b_v_width
                                          : args.layout.b_k_width),
                  tokens, values);
      }
    }
  }
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_TPA_RING_CUH_
