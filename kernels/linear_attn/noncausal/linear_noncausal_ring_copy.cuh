// Producer warps (Copiers) of linear_noncausal_ring.cu: k and q, v and g.
// Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_COPY_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_COPY_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/linear_attn/linear_boxes.cuh"
#include "kernels/linear_attn/linear_prefill_tiles.cuh"
#include "kernels/linear_attn/noncausal/linear_noncausal_ring_shared.cuh"

namespace recurve {
namespace linear_ring {

using linear_boxes::CopyBox;

// Copies k and q, or v and g: one warp a ring buffer, as far ahead as it has
// room. Whole tiles are copied by TMA. The warp fills an incomplete last tile
// itself: places without a token of the row must be zeros, and may not be
// readable memory.
template <Form kForm, bool kKeys>
struct Copier {
  using P = Plan<kForm>;

  // Items are re-read, as registers are few.
  __device__ __forceinline__ void Run() {
    bool summed = false;  // whether the previous item was
#pragma unroll 1
    for (uint32_t round = 0;; ++round) {
      BarrierWait(layout.ItemFull(round % kItemPlaces),
                  round / kItemPlaces & 1);
      const Item item = Told(layout, round);
      if (!item.Works()) break;
      const int end = item.end;
      if (!kKeys && summed && args.p.states != nullptr) MakeRoom();
      summed = round % 2 == 0 && item.Tiles() > 0;
#pragma unroll 1
      for (int tile = item.begin; tile < end; ++tile) Fetch(round, tile);
      WarpArrive(layout.ItemFree(round % kItemPlaces));
    }
  }
  // For the state.
  __device__ __forceinline__ void MakeRoom() {
    const int pieces = P::kEncodings * StatePieces(args);
#pragma unroll 1
    for (int i = 0; i < pieces; ++i) {
      BarrierWait(Free(), at.phase ^ 1);
      WarpArrive(Full());
      at.Next(kStages);
    }
  }
  __device__ __forceinline__ void Fetch(uint32_t round, int tile) {
    const LinearNoncausalParams& p = args.p;
    const bool sum = round % 2 == 0;
    const void* const x = kKeys ? (sum ? p.k : p.q) : (sum ? p.v : p.g);
    const CUtensorMap& map =
        kKeys ? (sum ? args.k : args.q) : (sum ? args.v : args.g);
    const uint32_t to = kKeys ? layout.Key(at.index) : layout.Value(at.index);
    BarrierWait(Free(), at.phase ^ 1);
    const Item item = Told(layout, round);
    const int left = item.Left(tile);
    if (x == nullptr) {  // only room for outputs
      WarpArrive(Full());
    } else if (left >= kTokens) {
      if (threadIdx.x % 32 == 0) {
        BarrierExpect(Full(), kRawBytes);
        const int token = item.Token(tile);
        CopyBox(to, map, 0, item.head, token, Full(), 1);
        CopyBox(to + kTileBytes, map, 64, item.head, token, Full(), 1);
      } else if (threadIdx.x % 32 < kArrivingLanes) {
        BarrierArrive(Full());
      }
    } else {
      Fill(item, tile, left, x, kKeys ? args.head_dim : args.value_dim, to);
      WarpArrive(Full());
    }
    at.Next(kStages);
  }
  __device__ __forceinline__ void Fill(const Item& item, int tile, int left,
                                       const void* x, int dim,
                                       uint32_t to) const {
    const int lane = threadIdx.x % 32;
    const int feature = lane % 16 * 8;
    const auto* from = static_cast<const __nv_bfloat16*>(x) +
                       int64_t{item.Token(tile)} * args.p.stride +
                       int64_t{item.head} * dim + feature;
    to += lane % 16 / 8 * kTileBytes;
#pragma unroll 4
    for (int i = lane / 16; i < kTokens; i += 2) {
      const bool exists = i < left && feature < dim;
      linear_prefill::CopyOrZero16(to + wgmma::PieceOffset(i, lane % 8),
                                   exists ? from + i * args.p.stride : x,
                                   exists ? 16 : 0);
    }
    CopyAsyncWait();
    BulkCopyFence();  // wgmma reads this thread's writes
  }

  static constexpr int kStages = kKeys ? P::kKeyStages : P::kValueStages;
  __device__ __forceinline__ uint32_t Full() const {
    return kKeys ? layout.KeyFull(at.index) : layout.ValueFull(at.index);
  }
  __device__ __forceinline__ uint32_t Free() const {
    return kKeys ? layout.KeyFree(at.index) : layout.ValueFree(at.index);
  }

  const Args& args;
  const Layout<kForm>& layout;
  Place at;
};

}  // namespace linear_ring
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_COPY_CUH_
