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

// It goes on to the next item as soon as there is room, so that memory has work
// while parts are added up. Whole tiles come by the tensor copy engine. A last
// one that is not whole the warp fills by itself: what is no token of the row
// must be zeros, and may not be memory at all.
template <Form kForm>
struct Copier {
  using P = Plan<kForm>;

  __device__ __forceinline__ void Run() {
    ForItems(args, [&](const Item& item) {
      if (!item.Works()) return;
      const LinearNoncausalParams& p = args.p;
#pragma unroll 1
      for (int i = 0; i < 2 * item.part_tiles; ++i) {
        const bool first = i < item.part_tiles;
        const int t = first ? i : i - item.part_tiles;
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
    });
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
        const int token = static_cast<int>(item.Token(tile));
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
                       item.Token(tile) * args.p.stride +
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
