// The warp that brings in k, v, q and g. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_COPY_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_COPY_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/linear_attn/linear_boxes.cuh"
#include "kernels/linear_attn/linear_noncausal_ring_shared.cuh"
#include "kernels/linear_attn/linear_prefill_tiles.cuh"

namespace recurve {
namespace linear_ring {

using linear_boxes::CopyBox;

// It runs ahead as far as there is room. Whole tiles come by the tensor copy
// engine. A last one that is not whole the warp fills by itself: what is no
// token of the row must be zeros, and may not be memory at all.
template <Form kForm>
struct Copier {
  using P = Plan<kForm>;

  __device__ __forceinline__ void Run() {
    Items items(args);
#pragma unroll 1
    while (true) {
      Tell(items.TakeWork());
      // k and v of this item, q and g of the one before. Items are read back,
      // as registers are few.
#pragma unroll 1
      for (uint32_t ago = 1; ago <= min(round, 2u); ++ago) {
        const int tiles = Told(layout, round - ago).PartTiles();
#pragma unroll 1
        for (int t = 0; t < tiles; ++t) {
          const Item item = Told(layout, round - ago);
          const LinearNoncausalParams& p = args.p;
          const bool first = ago == 1;
          Fetch(item, t, first ? p.k : p.q, first ? args.k : args.q,
                args.head_dim, layout.Key(key.index), layout.KeyFull(key.index),
                layout.KeyFree(key.index), key.phase);
          key.Next(P::kKeyStages);
          Fetch(item, t, first ? p.v : p.g, first ? args.v : args.g,
                args.value_dim, layout.Value(value.index),
                layout.ValueFull(value.index), layout.ValueFree(value.index),
                value.phase);
          value.Next(P::kValueStages);
        }
      }
      if (!Told(layout, round - 1).Works()) break;
    }
  }

  // Those who make and multiply read it in the order of rounds; nothing is over
  // what they still look at.
  __device__ __forceinline__ void Tell(const Item& item) {
    const int place = round % kItemPlaces;
    BarrierWait(layout.ItemFree(place), (round / kItemPlaces & 1) ^ 1);
    if (threadIdx.x % 32 == 0) {
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(
                       layout.ItemWords(place)),
                   "r"(item.slot), "r"(item.head), "r"(item.first_token),
                   "r"(item.count)
                   : "memory");
      asm volatile(
          "st.shared.b64 [%0], %1;" ::"r"(layout.ItemWords(place) + 16),
          "l"(item.position)
          : "memory");
    }
    WarpArrive(layout.ItemFull(place));
    ++round;
  }

  __device__ __forceinline__ void Fetch(const Item& item, int tile,
                                        const void* x, const CUtensorMap& map,
                                        int dim, uint32_t to, uint32_t full,
                                        uint32_t free, uint32_t phase) const {
    BarrierWait(free, phase ^ 1);
    const int left = item.Left(tile);
    if (x == nullptr) {  // nothing but room for outputs
      WarpArrive(full);
    } else if (left >= kTokens) {
      if (threadIdx.x % 32 == 0) {
        BarrierExpect(full, kRawBytes);
        const int token = item.Token(tile);
        CopyBox(to, map, 0, item.head, token, full, 1);
        CopyBox(to + kTileBytes, map, 64, item.head, token, full, 1);
      } else if (threadIdx.x % 32 < kArrivingLanes) {
        BarrierArrive(full);
      }
    } else {
      Fill(item, tile, left, x, dim, to);
      WarpArrive(full);
    }
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
    BulkCopyFence();  // wgmma reads what this thread wrote
  }

  const Args& args;
  const Layout<kForm>& layout;
  Place key;
  Place value;
  uint32_t round = 0;  // how many items were told of
};

}  // namespace linear_ring
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_COPY_CUH_
