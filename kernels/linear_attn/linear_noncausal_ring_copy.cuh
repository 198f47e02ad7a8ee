// The warps that bring in k and q, and v and g. Device code only.
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

// It runs ahead as far as there is room in the rings. Whole tiles come by the
// tensor copy engine. A last one that is not whole the warp fills by itself:
// what is no token of the row must be zeros, and may not be memory at all.
template <Form kForm>
struct Copier {
  using P = Plan<kForm>;

  // One warp for both rings, or one for k and q, which finds the items and
  // tells all others of them, and one for v and g. k and v of an item, then q
  // and g of the one before. Items are read back, as registers are few.
  template <bool kKeys, bool kValues>
  __device__ __forceinline__ void Run() {
    Items items(args);
#pragma unroll 1
    for (uint32_t round = 0;; ++round) {
      if constexpr (kKeys) {
        Tell(round, items.TakeWork());
      } else {
        BarrierWait(layout.ItemFull(round % kItemPlaces),
                    round / kItemPlaces & 1);
      }
      // A loop, so that both have one code.
#pragma unroll 1
      for (uint32_t ago = 0; ago <= min(round, 1u); ++ago) {
        Bring<kKeys, kValues>(round - ago, ago == 0);
      }
      if (!kKeys && round > 0) {
        WarpArrive(layout.ItemFree((round - 1) % kItemPlaces));
      }
      if (!Told(layout, round).Works()) break;
    }
  }
  template <bool kKeys, bool kValues>
  __device__ __forceinline__ void Bring(uint32_t round, bool first) {
    const LinearNoncausalParams& p = args.p;
    const int tiles = Told(layout, round).PartTiles();
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
      const Item item = Told(layout, round);
      if constexpr (kKeys) {
        Fetch(item, t, first ? p.k : p.q, first ? args.k : args.q,
              args.head_dim, layout.Key(key.index), layout.KeyFull(key.index),
              layout.KeyFree(key.index), key.phase);
        key.Next(P::kKeyStages);
      }
      if constexpr (kValues) {
        Fetch(item, t, first ? p.v : p.g, first ? args.v : args.g,
              args.value_dim, layout.Value(value.index),
              layout.ValueFull(value.index), layout.ValueFree(value.index),
              value.phase);
        value.Next(P::kValueStages);
      }
    }
  }

  // All read it in the order of rounds; nothing is over what somebody still
  // looks at.
  __device__ __forceinline__ void Tell(uint32_t round, const Item& item) {
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
};

}  // namespace linear_ring
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_COPY_CUH_
