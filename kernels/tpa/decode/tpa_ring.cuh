// The copy of factors into shared memory: producer warps and their ring
// buffers.
#ifndef RECURVE_KERNELS_TPA_DECODE_TPA_RING_CUH_
#define RECURVE_KERNELS_TPA_DECODE_TPA_RING_CUH_

#include <cstddef>

#include "kernels/common/async_copy.cuh"
#include "kernels/tpa/decode/tpa_decode.cuh"

namespace recurve {

// BulkCopy of data read once a step: it leaves L2 before partial results,
// queries and other kernels' data.
__device__ __forceinline__ void BulkCopyOnce(uint32_t to, const void* from,
                                             uint32_t bytes, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .b64 policy;"
      "  createpolicy.fractional.L2::evict_first.b64 policy, 1.0;"
      "  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1], %2, [%3], policy; }" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
#endif
}

// A ring buffer of stages, each with the keys (or values) of one rank and page
// as in memory: the octets of A that the block needs, then B. They are copied
// in the order of use. Scores of a page begin while the previous page is in
// work, so with R ranks, pages 0, 1, ... of a row are copied as
//
//   K(0, 0)  K(0, 1..R-1) K(1, 0) V(0, 0..R-1)  K(1, 1..R-1) K(2, 0) V(1, ...
//
// if that many fit (early_keys is 1), or with all keys early
//
//   K(0, 0..R-1)  K(1, 0..R-1) V(0, 0..R-1)  K(2, 0..R-1) V(1, ...
//
// (early_keys is R), else (0) as
//
//   K(0, 0)  K(0, 1..R-1) V(0, 0..R-2) K(1, 0) V(0, R-1)  K(1, 1..R-1) ...
//
// or, with heads as rows (kTpaInOrder), K(0) V(0) K(1) V(1) ... of all ranks.
class TpaRing {
 public:
  __device__ __forceinline__ TpaRing(const TpaDecodeArgs& args, uint32_t base,
                                     uint32_t barriers)
      : base_(base),
        barriers_(barriers),
        stages_(args.stages),
        stage_bytes_(args.stage_bytes) {}

  // By the producer warp, before others touch the ring buffer.
  __device__ __forceinline__ void Init(int consumer_warps,
                                       bool bulk_copies) const {
    const int i = threadIdx.x % 32;
    if (i < stages_) {
      BarrierInit(barriers_ + 16 * i, bulk_copies ? kArrivingLanes : 32);
      BarrierInit(barriers_ + 16 * i + 8, kArrivingLanes * consumer_warps);
    }
    BarrierInitFence();
    __syncwarp();
  }
  __device__ __forceinline__ int stages() const { return stages_; }

  __device__ __forceinline__ uint32_t At(int stage) const {
    return base_ + stage * stage_bytes_;
  }

  // ---- the producer warp ----

  __device__ __forceinline__ int stage() const { return stage_; }
  __device__ __forceinline__ uint32_t full() const {
    return barriers_ + 16 * stage_;
  }
  __device__ __forceinline__ void WaitEmpty() const {
    BarrierWait(full() + 8, phase_ ^ 1);
  }
  __device__ __forceinline__ void Next() {
    if (++stage_ == stages_) {
      stage_ = 0;
      phase_ ^= 1;
    }
  }

  // ---- consumer warps ----

  // The next stage, once it is full.
  __device__ __forceinline__ int Take() {
    BarrierWait(full(), phase_);
    const int taken = stage_;
    Next();
    return taken;
  }
  // Releases a stage. The warp's reads of it are done, for all lanes, or are
  // when `zero` is known: 0, computed from the last read. (A copy into the slot
  // overtakes a load that nothing waits for.)
  __device__ __forceinline__ void Give(int stage, uint32_t zero = 0) const {
    if (threadIdx.x % 32 < kArrivingLanes) {
      BarrierArrive(barriers_ + 16 * stage + 8 + zero);
    }
  }

  // ---- the warp that completes a stage (TpaFreshPage) ----

  // Marks it full. The warp has written to it, for all lanes.
  __device__ __forceinline__ void Complete(int stage) const {
    if (threadIdx.x % 32 < kArrivingLanes) {
      BarrierArrive(barriers_ + 16 * stage);
    }
  }

 private:
  uint32_t base_;
  uint32_t barriers_;  // [stages] pairs: full, empty
  int stages_;
  int stage_bytes_;
  int stage_ = 0;
  uint32_t phase_ = 0;
};

// For a cluster's block that appends: the stages of the new token's page, which
// are copied without it and become full when it is written there, too
// (tpa_fresh_page.cuh). A block has at most one such page, at the end of its
// row.
class TpaFreshPage {
 public:
  // 16 bytes of shared memory: a barrier, and the stages.
  __device__ __forceinline__ explicit TpaFreshPage(uint32_t memory)
      : barrier_(memory) {}

  // By the producer warp: before the first copy of `stages` stages...
  __device__ __forceinline__ void Init(int stages) const {
    if (threadIdx.x % 32 == 0) {
      BarrierInit(barrier_, stages * kArrivingLanes);
    }
    BarrierInitFence();
    __syncwarp();
  }
  __device__ __forceinline__ uint32_t barrier() const { return barrier_; }
  // ... and after the last one: a byte for each, in the order of copies: keys
  // of all ranks, then values.
  __device__ __forceinline__ void Note(uint32_t stages) const {
    if (threadIdx.x % 32 == 0) {
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(barrier_ + 8), "r"(stages)
                   : "memory");
    }
  }

  // By others, once Note is visible: waits until all is copied; and a stage.
  __device__ __forceinline__ void Await() const { BarrierWait(barrier_, 0); }
  __device__ __forceinline__ int Stage(int i) const {
    uint32_t stages;
    asm volatile("ld.shared.u32 %0, [%1];"
                 : "=r"(stages)
                 : "r"(barrier_ + 8)
                 : "memory");
    return static_cast<int>(stages >> 8 * i & 0xff);
  }

 private:
  const uint32_t barrier_;
};

// A row's queries in shared memory: for each warpgroup the octets of its
// columns, with room for kOctets of them, in memory's layout.
class TpaQueryCopy {
 public:
  __device__ __forceinline__ TpaQueryCopy(const TpaDecodeArgs& args, char* to,
                                          uint32_t barrier, int columns)
      : args_(args),
        to_(to),
        barrier_(barrier),
        group_bytes_(columns / 8 * args.query_octet_bytes) {}

  __device__ __forceinline__ void Init() const {
    BarrierInit(barrier_, 1);
    BarrierInitFence();
  }
  __device__ __forceinline__ int group_bytes() const { return group_bytes_; }
  // Address of the block's `octet`th octet of columns.
  __device__ __forceinline__ uint4* Octet(int octet) const {
    int at = octet * args_.query_octet_bytes;
    if (octet >= args_.group_octets) {
      at += group_bytes_ - args_.group_octets * args_.query_octet_bytes;
    }
    return reinterpret_cast<uint4*>(to_ + at);
  }
  // Bytes of a warpgroup's queries; columns after them are unused.
  __device__ __forceinline__ int UsedBytes(int group) const {
    return args_.query_octet_bytes *
           max(0, min(args_.group_octets,
                      args_.block_octets() - group * args_.group_octets));
  }

  // By one thread: issues bulk copies of the queries of `row`.
  __device__ __forceinline__ void Ask(int row) const {
    BarrierExpect(barrier_, args_.block_octets() * args_.query_octet_bytes);
#pragma unroll 1
    for (int group = 0; group < args_.groups; ++group) {
      const int bytes = UsedBytes(group);
      if (bytes == 0) break;
      BulkCopy(SharedAddress(to_) + group * group_bytes_, From(row, group),
               bytes, barrier_);
    }
  }
  // Waits for the queries last requested; `phase` is 0 the first time and
  // alternates.
  __device__ __forceinline__ void Wait(uint32_t phase) const {
    BarrierWait(barrier_, phase);
  }
  // Without bulk copies: by all consumer threads, a barrier before and after.
  __device__ __forceinline__ void Copy(int row) const {
#pragma unroll 1
    for (int group = 0; group < args_.groups; ++group) {
#pragma unroll 1
      for (int i = 16 * static_cast<int>(threadIdx.x); i < UsedBytes(group);
           i += 16 * args_.consumers()) {
        CopyAsync16(SharedAddress(to_) + group * group_bytes_ + i,
                    From(row, group) + i);
      }
    }
    CopyAsyncWait();
  }
  // Unused columns stay zero. By all consumer threads.
  __device__ __forceinline__ void ClearUnused() const {
#pragma unroll 1
    for (int group = 0; group < args_.groups; ++group) {
      for (int i = UsedBytes(group) + 16 * static_cast<int>(threadIdx.x);
           i < group_bytes_; i += 16 * args_.consumers()) {
        *reinterpret_cast<uint4*>(to_ + group * group_bytes_ + i) = {};
      }
    }
    BulkCopyFence();
  }

 private:
  __device__ __forceinline__ const char* From(int row, int group) const {
    const int64_t octet = int64_t{row} * args_.octets + args_.first_octet() +
                          group * args_.group_octets;
    return static_cast<const char*>(args_.p.queries) +
           octet * args_.query_octet_bytes;
  }

  const TpaDecodeArgs& args_;
  char* const to_;
  const uint32_t barrier_;
  const int group_bytes_;
};

// A word of the TpaBlockWork, of which lane i has word i.
__device__ __forceinline__ int TpaShareWord(int work, size_t offset) {
  return __shfl_sync(0xffffffffu, work, static_cast<int>(offset / 4));
}

// By a separate warp: requests the queries of the first row that the block has
// tokens of, once the previous launch is done.
__device__ __forceinline__ void AskForFirstQueries(const TpaDecodeArgs& args,
                                                   const TpaQueryCopy& queries,
                                                   int work) {
  int row = TpaShareWord(work, offsetof(TpaBlockWork, first_row));
  const int last_row = TpaShareWord(work, offsetof(TpaBlockWork, last_row));
  const int last_chunk = TpaShareWord(work, offsetof(TpaBlockWork, last_chunk));
  int begin = TpaShareWord(work, offsetof(TpaBlockWork, first_chunk));
  int length = TpaShareWord(work, offsetof(TpaBlockWork, first.length));
  while (row <= last_row && row < args.p.rows &&
         begin >= (row == last_row ? last_chunk : TpaChunkCount(length))) {
    ++row;
    begin = 0;
    if (row < last_row && row < args.p.rows) {
      length = __ldcg(&args.row_work(row).length);
    }
  }
  if (row > last_row || row >= args.p.rows) return;
  WaitForPrevious();
  if (threadIdx.x % 32 == 0) queries.Ask(row);
}

// Stages that a lane fills before it waits for the previous launch and the
// block's queries are requested. More would fill the memory queues for
// microseconds.
inline constexpr int kTpaEarlyStages = 4;

// Fills stages with the factors of a lane's part of a block's share: every
// args.lanes-th chunk of a row. By one warp, with bulk copies or, without
// kBulk, in copies of 16 bytes. If kAppends, other warps append the new tokens;
// in a cluster they complete the new token's page in its stages, so that it
// does not wait for them.
template <bool kBulk, bool kAppends, bool kCompletes>
class TpaCopier {
  static_assert(!kCompletes || (kBulk && kAppends));

 public:
  // `work` is a word for each lane of the block's TpaBlockWork.
  __device__ __forceinline__ TpaCopier(const TpaDecodeArgs& args,
                                       const TpaRing& ring,
                                       const TpaFreshPage& fresh, int lane,
                                       int work)
      : args_(args),
        ring_(ring),
        fresh_(fresh),
        chunk_lane_(lane),
        work_(work),
        early_left_(min(kTpaEarlyStages, ring.stages())),
        lane_(threadIdx.x % 32),
        a_plane_(kTpaOctetBytes * static_cast<int>(args.layout.a_width / 8)),
        a_first_(kTpaOctetBytes * args.first_head_octet()),
        a_bytes_(kTpaOctetBytes * args.head_octet_count()) {}

  // The block's first keys, before all else, if they are not fresh.
  __device__ __forceinline__ void Begin() {
    if (chunk_lane_ != 0 ||
        Word(offsetof(TpaBlockWork, behind_page)) < args_.p.fresh_tokens) {
      return;
    }
    const char* page = PageAt(Word(offsetof(TpaBlockWork, pages)));
#pragma unroll 1
    for (int r = 0; r < max(args_.early_keys, 1); ++r) {
      Fill(page + 2 * r * args_.layout.k_block,
           static_cast<int>(args_.layout.b_k_width));
    }
    begun_ = true;
  }

  // All the rest.
  //
  // Until it waits for the previous launch, it reads only data older than the
  // schedule, which no kernel overtakes (rows_cuda.h, LaunchCopy). The
  // exception is a new token's place in a page that others complete: that read
  // is not used.
  __device__ __forceinline__ void CopyShare() {
    const TpaCudaDecodeParams& p = args_.p;
    const int first_row = Word(offsetof(TpaBlockWork, first_row));
    const int last_row = Word(offsetof(TpaBlockWork, last_row));
    const int first_chunk = Word(offsetof(TpaBlockWork, first_chunk));
    const int last_chunk = Word(offsetof(TpaBlockWork, last_chunk));
    const int first_length = Word(offsetof(TpaBlockWork, first.length));
    const int early_page =
        __shfl_sync(0xffffffffu, work_,
                    static_cast<int>(offsetof(TpaBlockWork, pages)) / 4 +
                        lane_ % kTpaEarlyPages);
#pragma unroll 1
    for (int row = first_row; row <= last_row && row < p.rows; ++row) {
      const bool is_first = row == first_row;
      const int length =
          is_first ? first_length : __ldcg(&args_.row_work(row).length);
      const int begin = is_first ? first_chunk : 0;
      const int end = row == last_row ? last_chunk : TpaChunkCount(length);
      if (begin >= end) continue;
      // Pages before this have no fresh token.
      const int settled =
          static_cast<int>(max(int64_t{length} - p.fresh_tokens, int64_t{0})) /
          64;
      const int last_page = (min(TpaChunkBegin(end), length) + 63) / 64;
      const int32_t* table =
          p.cache.page_table + row * p.cache.page_table_stride;
      // Page numbers are read a batch ahead: page `batch` + i by lane i. The
      // first row's first few are in the block's share.
      int index = TpaChunkBegin(begin) / 64;
      int batch = index;
      int batch_pages = is_first ? kTpaEarlyPages : 32;
      int pages = early_page;
      if (!is_first && index + lane_ < last_page) {
        pages = __ldcg(table + index + lane_);
      }
      int next_pages = 0;
      if (batch + batch_pages + lane_ < last_page) {
        next_pages = __ldcg(table + batch + batch_pages + lane_);
      }
      int current = -1;
      if (is_first && begun_) {
        current = __shfl_sync(0xffffffffu, early_page, 0);
        ++index;
      }
#pragma unroll 1
      do {
        // The lane's next page.
        while (index < last_page && ((TpaChunkOf(64 * index) - begin) &
                                     (args_.lanes - 1)) != chunk_lane_) {
          ++index;
        }
        int page = -1;
        if (index < last_page) {
          if (index >= batch + batch_pages) {
            batch += batch_pages;
            batch_pages = 32;
            pages = next_pages;
            if (batch + 32 + lane_ < last_page) {
              next_pages = __ldcg(table + batch + 32 + lane_);
            }
          }
          page = __shfl_sync(0xffffffffu, pages, index - batch);
          if (index >= settled) BeginFresh();
          ++index;
        }
        CopyPage(current, page);
        current = page;
      } while (current >= 0);
    }
    EndFresh();
  }

 private:
  __device__ __forceinline__ int Word(size_t offset) const {
    return TpaShareWord(work_, offset);
  }

  // Waits for the previous launch. Waiting again is free.
  __device__ __forceinline__ void Settle() { WaitForPrevious(); }

  // Before the first copy of a page with new tokens; if others complete it, it
  // is the lane's last.
  __device__ __forceinline__ void BeginFresh() {
    if constexpr (kCompletes) {
      has_fresh_ = true;
      fresh_.Init(2 * static_cast<int>(args_.p.shape.kv_rank));
    } else {
      Settle();
      AwaitAppend();
    }
  }
  // After all copies.
  __device__ __forceinline__ void EndFresh() {
    if constexpr (kCompletes) {
      if (!has_fresh_) return;
      fresh_.Note(fresh_stages_);
      NamedBarrierArrive(kTpaAppendBarrier + chunk_lane_,
                         args_.append_threads());
    } else {
      AwaitAppend();  // no warp may remain waiting at its barrier
    }
  }

  // Waits for the block's new tokens, if it appends them.
  __device__ __forceinline__ void AwaitAppend() {
    if (!kAppends || appended_) return;
    NamedBarrier(kTpaAppendBarrier + chunk_lane_, args_.append_threads());
    appended_ = true;
  }

  // Copies the rest of `page`, and the first keys of `next`; either may be -1
  // for none. One loop with one copy: this code is cold when a block begins,
  // and each line of it is fetched from far away.
  __device__ __forceinline__ void CopyPage(int page, int next) {
    const TpaPageLayout& layout = args_.layout;
    const int kv_rank = static_cast<int>(args_.p.shape.kv_rank);
    // `early` of the next page's keys, after `next_keys` of this page's stages.
    const int early = max(args_.early_keys, 1);
    const int own_keys = kv_rank - early;
    const int next_keys = args_.early_keys > 0 ? own_keys
                          : args_.early_keys == 0
                              ? own_keys + kv_rank - 1
                              : own_keys + kv_rank;  // kTpaInOrder
    const int begin = page < 0 ? next_keys : 0;
    const int end = page < 0 ? next_keys + early : 2 * kv_rank;
#pragma unroll 1
    for (int i = begin; i < end; ++i) {
      const bool of_next = i >= next_keys && i < next_keys + early;
      if (of_next && next < 0) continue;
      const bool keys = of_next || i < own_keys;
      const int r = of_next ? i - next_keys
                    : keys  ? i + early
                            : i - own_keys - (i > next_keys ? early : 0);
      const int64_t offset =
          keys ? r * layout.k_block : layout.values + r * layout.v_block;
      Fill(PageAt(of_next ? next : page) + 2 * offset,
           static_cast<int>(keys ? layout.b_k_width : layout.b_v_width),
           kCompletes && has_fresh_ && (of_next || next < 0));
    }
  }
  __device__ __forceinline__ const char* PageAt(int64_t page) const {
    return static_cast<const char*>(args_.p.cache.pages) +
           2 * page * args_.p.cache.page_stride;
  }

  // The next stage: A's octets and all of B. `fresh`: others complete it.
  __device__ __forceinline__ void Fill(const char* from, int b_width,
                                       bool fresh = false) {
    const int b_bytes = kTpaOctetBytes * (b_width / 8);
    const uint32_t to = ring_.At(ring_.stage());
    uint32_t barrier = ring_.full();
    if constexpr (kCompletes) {
      if (fresh) {
        barrier = fresh_.barrier();
        fresh_stages_ |= ring_.stage() << fresh_shift_;
        fresh_shift_ += 8;
      }
    }
    if (early_left_-- == 0) Settle();
    ring_.WaitEmpty();
    if constexpr (!kBulk) {
      CopyRun(to, from + a_first_, a_bytes_);
      CopyRun(to + a_bytes_, from + a_plane_, b_bytes);
      BarrierArriveAfterCopies(barrier);
    } else if (lane_ == 0) {
      BarrierExpect(barrier, a_bytes_ + b_bytes);
      if (a_bytes_ == a_plane_) {
        BulkCopyOnce(to, from, a_bytes_ + b_bytes, barrier);
      } else {
        BulkCopyOnce(to, from + a_first_, a_bytes_, barrier);
        BulkCopyOnce(to + a_bytes_, from + a_plane_, b_bytes, barrier);
      }
    } else if (lane_ < kArrivingLanes) {
      BarrierArrive(barrier);
    }
    __syncwarp();
    ring_.Next();
  }

  // All lanes copy `bytes` by 16.
  __device__ __forceinline__ void CopyRun(uint32_t to, const char* from,
                                          int bytes) {
#pragma unroll 1
    for (int i = 16 * lane_; i < bytes; i += 512) CopyAsync16(to + i, from + i);
  }

  const TpaDecodeArgs& args_;
  TpaRing ring_;
  const TpaFreshPage fresh_;
  const int chunk_lane_;
  const int work_;
  int early_left_;
  bool has_fresh_ = false;
  uint32_t fresh_stages_ = 0;
  int fresh_shift_ = 0;
  bool begun_ = false;
  bool appended_ = false;
  const int lane_;
  const int a_plane_;  // bytes of A in memory
  const int a_first_;  // first of this block's octets of it
  const int a_bytes_;
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_DECODE_TPA_RING_CUH_
