// Producer warps (Copier) of linear_chunks.cu: bring in q, k and v. Device code
// only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_COPY_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_COPY_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/linear_attn/causal/linear_chunks_shared.cuh"
#include "kernels/linear_attn/linear_boxes.cuh"

namespace recurve {
namespace linear_chunks {

using linear_boxes::CopyBox;

// The producer warpgroup. Whole chunks are copied by TMA, each block of the
// cluster copying a part for all readers. A first or last chunk that is not
// whole is filled by each block itself: places without a token of the row must
// be zeros, and may not be readable memory.
template <int kKeyTiles>
struct Copier {
  static constexpr int kValueWarp = 2;
  static constexpr int kQueryWarp = 3;

  __device__ __forceinline__ Copier(const Args& a,
                                    const Layout<kKeyTiles>& shared_layout,
                                    const Row& r, const Part& p, int h)
      : args(a),
        layout(shared_layout),
        row(r),
        part(p),
        head(h),
        thread(threadIdx.x % kGroup) {}

  // One lane of each warp copies its own tiles: one of the keys' tiles, those
  // of values, or those of queries.
  __device__ __forceinline__ void Run() const {
    const int warp = thread / 32;
    const bool copies = thread % 32 == 0;
    Place stage;
    Place query;
    for (int c = 0; c < row.chunks; ++c) {
      const bool mine = part.Mine(c);
      if (row.Begin(c) != 0 || row.End(c) != kChunk) {
        Fill(c, mine, stage, query);
      } else if (copies) {
        const int token = static_cast<int>(row.Token(c, 0));
        if (warp == kQueryWarp) {
          if (mine) FetchQueries(token, query);
        } else if (warp == kValueWarp) {
          FetchPart(part.map_v, 64 * part.tile, token, stage,
                    layout.Values(stage.index));
        } else if (warp < kKeyTiles) {
          FetchPart(part.map_k, 64 * warp, token, stage,
                    layout.Keys(stage.index) + warp * wgmma::kTileBytes);
        }
      }
      stage.Next(args.stages);
      if (mine) query.Next(args.query_stages);
    }
    if (part.turns > 1) {
      // The other block's arrivals here are complete: this one may end.
      for (int i = 0; i < args.stages; ++i) {
        BarrierWait(layout.Free(stage.index), stage.phase ^ 1);
        stage.Next(args.stages);
      }
      __syncwarp();
      cluster::Meet();
    }
  }

  // A tile of k or v, for all blocks that take turns: each copies its part of
  // the tokens.
  __device__ __forceinline__ void FetchPart(const CUtensorMap* map, int feature,
                                            int token, const Place& stage,
                                            uint32_t to) const {
    const uint32_t full = layout.Full(stage.index);
    const int first = part.turn * (kChunk / part.turns);
    BarrierWait(layout.Free(stage.index), stage.phase ^ 1);
    BarrierExpect(full, wgmma::kTileBytes);
    CopyBox(to + first * 128, *map, feature, head, token + first, full,
            (1u << part.turns) - 1);
  }
  __device__ __forceinline__ void FetchQueries(int token,
                                               const Place& query) const {
    const uint32_t full = layout.QueryFull(query.index);
    BarrierWait(layout.QueryFree(query.index), query.phase ^ 1);
    BarrierExpect(full, Layout<kKeyTiles>::kKeyBytes);
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
      CopyBox(layout.Queries(query.index) + t * wgmma::kTileBytes, args.q,
              64 * t, head, token, full, 1);
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
    // No thread waits for a round of a barrier before the previous one has
    // passed.
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
    BulkCopyFence();  // wgmma reads this thread's writes
    NamedBarrier(1, kGroup);
    if (thread == 0) {
      for (int i = 0; i <= kKeyTiles; ++i) {
        BarrierArrive(layout.Full(stage.index));
      }
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

#endif  // RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_COPY_CUH_
