// The group that brings in q, k and v. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_CHUNKS_COPY_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_CHUNKS_COPY_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/linear_attn/linear_boxes.cuh"
#include "kernels/linear_attn/linear_chunks_shared.cuh"

namespace recurve {
namespace linear_chunks {

using linear_boxes::CopyBox;

// Whole chunks come by the tensor copy engine, each block of the cluster
// bringing in a part for all that read it. A first or last chunk that is not
// whole each block fills by itself: what is no token of the row must be zeros,
// and may not be memory at all.
template <int kKeyTiles>
struct Copier {
  __device__ __forceinline__ Copier(const Args& a,
                                    const Layout<kKeyTiles>& shared_layout,
                                    const Row& r, const Part& p, int h)
      : args(a),
        layout(shared_layout),
        row(r),
        part(p),
        head(h),
        thread(threadIdx.x % kGroup) {}

  __device__ __forceinline__ void Run() const {
    Place stage;
    Place query;
    for (int c = 0; c < row.chunks; ++c) {
      const bool whole = row.Begin(c) == 0 && row.End(c) == kChunk;
      const bool mine = part.Mine(c);
      if (!whole) {
        Fill(c, mine, stage, query);
      } else if (thread == 0) {
        const int token = static_cast<int>(row.Token(c, 0));
        BarrierWait(layout.Free(stage.index), stage.phase ^ 1);
        Fetch(token, stage.index);
        if (mine) {
          BarrierWait(layout.QueryFree(query.index), query.phase ^ 1);
          FetchQueries(token, query.index);
        }
      }
      stage.Next(args.stages);
      if (mine) query.Next(args.query_stages);
    }
    __syncwarp();
    if (part.turns > 1) linear_cluster::ClusterBarrier();
  }

  __device__ __forceinline__ void Fetch(int token, int stage) const {
    const uint32_t full = layout.Full(stage);
    BarrierExpect(full, Layout<kKeyTiles>::kStageBytes);
    // A box has a block's part of the tokens; one that is alone brings in all.
    const int count = kChunk / args.turns;
    const uint32_t all = (1u << part.turns) - 1;
#pragma unroll 1
    for (int box = 0; box < part.boxes; ++box) {
      const int first = (part.turn + box) * count;
      const uint32_t to = first * 128;
#pragma unroll
      for (int t = 0; t < kKeyTiles; ++t) {
        CopyBox(layout.Keys(stage) + t * wgmma::kTileBytes + to, args.k, 64 * t,
                head, token + first, full, all);
      }
      CopyBox(layout.Values(stage) + to, args.v, 64 * part.tile, head,
              token + first, full, all);
    }
  }
  __device__ __forceinline__ void FetchQueries(int token, int stage) const {
    const uint32_t full = layout.QueryFull(stage);
    BarrierExpect(full, Layout<kKeyTiles>::kKeyBytes);
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
      CopyBox(layout.Queries(stage) + t * wgmma::kTileBytes, args.q, 64 * t,
              head, token, full, 1);
    }
  }

  // 64 features from `first` of x's `dim`, of each token of chunk c.
  __device__ __forceinline__ void FillTile(const void* x, int first, int dim,
                                           int c, uint32_t tile) const {
    const int feature = first + thread % 8 * 8;
    const auto* from =
        static_cast<const __nv_bfloat16*>(x) + int64_t{head} * dim + feature;
#pragma unroll 1
    for (int i = thread / 8; i < kChunk; i += kGroup / 8) {
      const bool exists = i >= row.Begin(c) && i < row.End(c) && feature < dim;
      linear_prefill::CopyOrZero16(
          tile + wgmma::PieceOffset(i, thread % 8),
          exists ? from + row.Token(c, i) * args.p.stride : x, exists ? 16 : 0);
    }
  }
  __device__ __forceinline__ void Fill(int c, bool mine, Place stage,
                                       Place query) const {
    // Nobody waits for a round of a barrier before the one before has passed.
    NamedBarrier(1, kGroup);
    BarrierWait(layout.Free(stage.index), stage.phase ^ 1);
#pragma unroll 1
    for (int t = 0; t < kKeyTiles; ++t) {
      FillTile(args.p.k, 64 * t, args.head_dim, c,
               layout.Keys(stage.index) + t * wgmma::kTileBytes);
    }
    FillTile(args.p.v, 64 * part.tile, args.value_dim, c,
             layout.Values(stage.index));
    if (mine) {
      BarrierWait(layout.QueryFree(query.index), query.phase ^ 1);
#pragma unroll 1
      for (int t = 0; t < kKeyTiles; ++t) {
        FillTile(args.p.q, 64 * t, args.head_dim, c,
                 layout.Queries(query.index) + t * wgmma::kTileBytes);
      }
    }
    CopyAsyncWait();
    BulkCopyFence();  // wgmma reads what this thread wrote
    NamedBarrier(1, kGroup);
    if (thread == 0) {
      BarrierArrive(layout.Full(stage.index));
      if (mine) BarrierArrive(layout.QueryFull(query.index));
    }
  }

  const Args& args;
  const Layout<kKeyTiles>& layout;
  const Row& row;
  const Part& part;
  int head;
  int thread;
};

}  // namespace linear_chunks
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_CHUNKS_COPY_CUH_
