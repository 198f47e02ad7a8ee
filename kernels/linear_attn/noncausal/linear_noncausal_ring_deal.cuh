// Scheduler warp (Dealer) of linear_noncausal_ring.cu: finds the work of the
// block. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_DEAL_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_DEAL_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/linear_attn/noncausal/linear_noncausal_deal.h"
#include "kernels/linear_attn/noncausal/linear_noncausal_ring_shared.cuh"

namespace recurve {
namespace linear_ring {

// Tiles of a row, from shared memory for most rows.
struct RowTilesKept {
  __device__ __forceinline__ uint32_t operator()(uint32_t row) const {
    return row < kRowsKept ? kept[row] : TilesOfRow(*p, row);
  }
  const LinearNoncausalParams* p;
  const uint32_t* kept;
};

// Loads a number into L1 for a later read.
__device__ __forceinline__ void Touch(const int64_t* number) {
  asm volatile("{ .reg .b64 x; ld.global.b64 x, [%0]; }" ::"l"(number));
}

// Before the warps of a block diverge: each thread finds the tiles of some
// rows.
__device__ __forceinline__ void KeepRowTiles(const Args& args, uint32_t* kept) {
  const uint32_t rows = min(RowsInUse(args.p), kRowsKept + 0u);
  for (uint32_t row = threadIdx.x; row < rows; row += blockDim.x) {
    if (args.p.positions != nullptr) Touch(args.p.positions + row);
    kept[row] = TilesOfRow(args.p, row);
  }
}

// The warp, for FindNoncausalShares.
struct WarpTeam {
  __device__ __forceinline__ uint32_t rank() const { return threadIdx.x % 32; }
  __device__ __forceinline__ uint32_t size() const { return 32; }
  __device__ __forceinline__ uint32_t Before(uint32_t x, uint32_t* sum) const {
    uint32_t all = x;
    for (int offset = 1; offset < 32; offset *= 2) {
      const uint32_t other = __shfl_up_sync(0xffffffffu, all, offset);
      if (rank() >= static_cast<uint32_t>(offset)) all += other;
    }
    const uint32_t before = *sum + all - x;
    *sum += __shfl_sync(0xffffffffu, all, 31);
    return before;
  }
  __device__ __forceinline__ void Meet() const { __syncwarp(); }
};

template <Form kForm>
struct Dealer {
  // `kept` is KeepRowTiles's, `numbers` of FindNoncausalShares.
  __device__ __forceinline__ Dealer(const Args& a, const Layout<kForm>& l,
                                    const uint32_t* kept, uint32_t* numbers)
      : args(a),
        layout(l),
        line({&a.p, kept}, RowsInUse(a.p), a.heads, gridDim.x),
        shares({numbers, numbers + kShareNumbers, numbers + 2 * kShareNumbers,
                numbers + 3 * kShareNumbers}),
        deal(line, shares, blockIdx.x) {}

  // Tells the first sum before the shares are known.
  __device__ __forceinline__ void TellFirst() {
    if (!deal.HasHeads()) return;
    deal.Next(line, &work);
    Tell(0, work.sum_tiles);
    ++round;
  }
  __device__ __forceinline__ void Run() {
    const LinearNoncausalParams& p = args.p;
    FindNoncausalShares(line, WarpTeam(), shares);
#pragma unroll 1
    for (;;) {
      if (round % 2 == 0) {
        if (!deal.Next(line, &work)) break;
        Tell(0, work.sum_tiles);
      } else {
        deal.Finish(&work);
        Tell(work.begin, work.end);
      }
      ++round;
    }
    TellEnd();
    const uint32_t rows = RowsInUse(p);
    if (p.out_type == ElementType::kFloat32) {
      WriteZeros(rows, static_cast<float*>(p.out));
    } else {
      WriteZeros(rows, static_cast<__nv_bfloat16*>(p.out));
    }
  }
  // All warps read items in the order of rounds; no item that is still read is
  // overwritten.
  __device__ __forceinline__ void Tell(uint32_t begin, uint32_t end) const {
    const LinearNoncausalParams& p = args.p;
    const int place = round % kItemPlaces;
    BarrierWait(layout.ItemFree(place), (round / kItemPlaces & 1) ^ 1);
    if (threadIdx.x % 32 == 0) {
      const uint32_t to = layout.ItemWords(place);
      const uint32_t first = p.query_start[work.row];
      const uint32_t count = p.query_start[work.row + 1] - first;
      const uint32_t slot = p.states == nullptr ? 0 : p.slots[work.row];
      const uint64_t position =
          p.positions == nullptr ? 0 : p.positions[work.row];
      Write(to, slot, work.head, first, count);
      Write(to + 16, begin, end, static_cast<uint32_t>(position),
            static_cast<uint32_t>(position >> 32));
      Write(to + 32, work.load_place, work.store_place, 0, 0);
    }
    WarpArrive(layout.ItemFull(place));
  }
  // Tells that there are no more.
  __device__ __forceinline__ void TellEnd() const {
    const int place = round % kItemPlaces;
    BarrierWait(layout.ItemFree(place), (round / kItemPlaces & 1) ^ 1);
    if (threadIdx.x % 32 == 0) Write(layout.ItemWords(place), 0, 0, 0, 0);
    WarpArrive(layout.ItemFull(place));
  }
  static __device__ __forceinline__ void Write(uint32_t to, uint32_t a,
                                               uint32_t b, uint32_t c,
                                               uint32_t d) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a),
                 "r"(b), "r"(c), "r"(d)
                 : "memory");
  }
  // The outputs of rows in the sink: each row a head at a time.
  template <typename T>
  __device__ __forceinline__ void WriteZeros(uint32_t rows, T* out) const {
    const LinearNoncausalParams& p = args.p;
    if (p.states == nullptr) return;
    const int columns = args.value_dim;
    uint32_t turn = blockIdx.x;
    for (uint32_t row = 0; row < rows; ++row) {
      if (p.slots[row] > 0) continue;
      const int64_t first = p.query_start[row];
      const int64_t count = p.query_start[row + 1] - first;
      for (; turn < args.heads; turn += gridDim.x) {
        T* token = out + first * p.out_stride + int64_t{turn} * columns;
        for (int64_t i = 0; i < count; ++i) {
          for (int c = threadIdx.x % 32; c < columns; c += 32) {
            token[c] = T(0.0f);
          }
          token += p.out_stride;
        }
      }
      turn -= args.heads;
    }
  }

  const Args& args;
  const Layout<kForm>& layout;
  const NoncausalLine<RowTilesKept> line;
  const NoncausalShares shares;
  NoncausalDeal<RowTilesKept> deal;
  NoncausalWork work;
  uint32_t round = 0;
};

}  // namespace linear_ring
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_DEAL_CUH_
