// The page of a row's new token in a cluster's block that appends it: copied
// before the token is known, and completed in shared memory.
#ifndef RECURVE_KERNELS_TPA_DECODE_TPA_FRESH_PAGE_CUH_
#define RECURVE_KERNELS_TPA_DECODE_TPA_FRESH_PAGE_CUH_

#include <cstddef>

#include "kernels/common/async_copy.cuh"
#include "kernels/tpa/append/tpa_append.cuh"
#include "kernels/tpa/decode/tpa_decode.cuh"
#include "kernels/tpa/decode/tpa_own_tokens.cuh"
#include "kernels/tpa/decode/tpa_ring.cuh"

namespace recurve {

template <typename T>
__device__ __forceinline__ void StoreHalf(uint32_t at, T value) {
  static_assert(sizeof(T) == 2);
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(at),
               "h"(reinterpret_cast<const uint16_t&>(value))
               : "memory");
}

// Writes the new token of the block's row, if the row ends in the block: to the
// row's page, the heads that this block reads and all of B, and into the stages
// that hold the page, which are then full. So no warp waits for the page to
// return from memory. By the warps that do not copy, of which this is the
// `warp`th; each takes a rank. `work` is a word for each lane of TpaBlockWork;
// ring_of(lane) is a lane's ring buffer.
//
// D and E are 64. The bits are LaunchTpaAppend's.
template <typename T, int kColumns, int kRank, typename RingOf>
__device__ __forceinline__ void TpaCompleteFreshPage(const TpaDecodeArgs& args,
                                                     const RingOf& ring_of,
                                                     const TpaFreshPage& fresh,
                                                     int warp, int work) {
  static_assert(kColumns <= 32 && kRank <= 2);
  const int row = TpaShareWord(work, offsetof(TpaBlockWork, first_row));
  const int last_row = TpaShareWord(work, offsetof(TpaBlockWork, last_row));
  const int begin = TpaShareWord(work, offsetof(TpaBlockWork, first_chunk));
  const int last_chunk = TpaShareWord(work, offsetof(TpaBlockWork, last_chunk));
  const int length = TpaShareWord(work, offsetof(TpaBlockWork, first.length));
  if (row >= args.p.rows) return;
  const int chunks = TpaChunkCount(length);
  const int end = row == last_row ? last_chunk : chunks;
  if (begin >= end || end < chunks) return;
  const int chunk_lane = (chunks - 1 - begin) % kTpaClusterLanes;
  const auto await_copier = [&] {
    NamedBarrier(kTpaAppendBarrier + chunk_lane, args.append_threads());
  };
  if (warp >= kRank) {
    await_copier();
    return;
  }

  const TpaCudaFactors& f = args.p.factors;
  constexpr int kWidth = 64;
  const int num_heads = static_cast<int>(args.p.shape.num_heads);
  const int first_head = 8 * args.first_head_octet();
  const int heads = 8 * args.head_octet_count();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int m = (length - 1) % kTpaPageTokens;
  const int64_t page = TpaLastPage(args, row, length);
  WaitForPrevious();
  // Padding heads stay zero.
  const bool has_head = lane < heads;
  const bool exists = has_head && first_head + lane < num_heads;
  const int64_t a_from = row * f.stride + warp * num_heads + first_head + lane;
  const int64_t b_from = row * f.stride + warp * kWidth;
  const float a[2] = {exists ? f.a_k[a_from] : 0.0f,
                      exists ? f.a_v[a_from] : 0.0f};
  float b[2][2];  // key, value
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    b[0][j] = TpaEncodeKey(f, kWidth, row, f.b_k + b_from, lane + 32 * j);
    b[1][j] = f.b_v[b_from + lane + 32 * j];
  }
  const TpaRing ring = ring_of(chunk_lane);
  await_copier();
  fresh.Await();
  // This lane's element of the token in a plane; the one 32 elements on is four
  // octets on.
  const int own = 8 * (kTpaPageTokens * (lane / 8) + m) + lane % 8;
  constexpr int kStep = 4 * 8 * kTpaPageTokens;
#pragma unroll
  for (int v = 0; v < 2; ++v) {
    const int stage = fresh.Stage(v * kRank + warp);
    const uint32_t to = ring.At(stage) + 2 * own;
    if (has_head) StoreHalf(to, Half<T>::From(a[v]));
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      StoreHalf(to + 2 * (kTpaPageTokens * heads + kStep * j),
                Half<T>::From(b[v][j]));
    }
    BulkCopyFence();
    __syncwarp();
    ring.Complete(stage);
  }
  T* const pages = static_cast<T*>(args.p.cache.pages) +
                   page * args.p.cache.page_stride + own;
  const int a_planes = kTpaPageTokens * static_cast<int>(args.layout.a_width);
#pragma unroll
  for (int v = 0; v < 2; ++v) {
    T* const to =
        pages + (v == 0 ? warp * args.layout.k_block
                        : args.layout.values + warp * args.layout.v_block);
    if (has_head) to[kTpaPageTokens * first_head] = Half<T>::From(a[v]);
#pragma unroll
    for (int j = 0; j < 2; ++j)
      to[a_planes + kStep * j] = Half<T>::From(b[v][j]);
  }
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_DECODE_TPA_FRESH_PAGE_CUH_
