// Epilogue warpgroup (Finisher) of linear_prefill.cu: sums over the key slices,
// and writes. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_PREFILL_FINISH_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_PREFILL_FINISH_CUH_

#include <cstdint>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/linear_attn/causal/linear_prefill_cuda.h"
#include "kernels/linear_attn/causal/linear_prefill_shared.cuh"
#include "kernels/linear_attn/linear_prefill_tiles.cuh"
#include "kernels/linear_attn/linear_wgmma.cuh"

namespace recurve {
namespace linear_prefill {

template <int kGroups>
struct Finisher {
  __device__ __forceinline__ Finisher(const LinearPrefillParams& params,
                                      const Shape& shape,
                                      const Layout<kGroups>& l, const Row& r,
                                      int head_index, int slice_index,
                                      int value_tile)
      : p(params),
        s(shape),
        layout(l),
        row(r),
        head(head_index),
        thread(GroupThread()),
        warp(thread / 32),
        lane(thread % 32),
        first_column(value_tile * kGroups * 64 + 16 * warp),
        floats(params.out_type == ElementType::kFloat32) {
    const Routes routes(s.key_slices);
    first_block = routes.FirstBlock(slice_index);
    own_blocks = routes.FirstBlock(slice_index + 1) - first_block;
  }

  __device__ __forceinline__ void Run() const {
    for (int c = 0; c < 2 && c < row.chunks; ++c) {
      for (int g = 0; g < kGroups; ++g) Expect(g, c);
    }
    for (int c = 0; c < row.chunks; ++c) {
#pragma unroll 1
      for (int g = 0; g < kGroups; ++g) Finish(g, c);
    }
  }

  // With one slice, its threads arrive themselves.
  __device__ __forceinline__ void Expect(int group, int c) const {
    if (thread == 0 && s.key_slices > 1) {
      BarrierExpect(layout.SumsFull(group, c),
                    own_blocks * s.key_slices * (kGroup * 16));
    }
  }

  // Sums this block's tokens of chunk c, in the order of the slices, and writes
  // them.
  __device__ __forceinline__ void Finish(int group, int c) const {
    BarrierWait(layout.SumsFull(group, c), c >> 1 & 1);
    if (c + 2 < row.chunks) Expect(group, c + 2);
    __syncwarp();  // the last staged outputs have been read
    const uint32_t parts = layout.Exchange(group, c) + thread * 16;
    if (s.key_slices == 2) {  // without loops
      float sum[4][4];
      float more[4][4];
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        LoadPart(parts + b * (kGroup * 16), sum[b]);
        LoadPart(parts + (4 + b) * (kGroup * 16), more[b]);
      }
#pragma unroll
      for (int b = 0; b < 4; ++b) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sum[b][i] = (sum[b][i] + more[b][i]) * p.scale;
        }
        Put(group, c, b, sum[b]);
      }
    } else {
      for (int b = 0; b < own_blocks; ++b) {
        float sum[4] = {};
        for (int from = 0; from < s.key_slices; ++from) {
          float more[4];
          LoadPart(parts + (from * s.exchange_blocks + b) * (kGroup * 16),
                   more);
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[i] += more[i];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] *= p.scale;
        Put(group, c, b, sum);
      }
    }
    __syncwarp();
    if (s.key_slices == 1) {
      if (lane == 0) BarrierArrive(layout.SumsFree(group, c));
    } else if (lane < s.key_slices) {
      cluster::ArriveInCluster(
          cluster::InBlock(layout.SumsFree(group, c), lane));
    }
    if (!floats) WriteStaged(group, c);
  }
  __device__ __forceinline__ void LoadPart(uint32_t at, float (&x)[4]) const {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(at));
  }
  __device__ __forceinline__ uint32_t Staging(int group) const {
    return layout.outputs + group * wgmma::kTileBytes +
           warp * (wgmma::kTileBytes / 4);
  }
  // Own block b of 8 tokens: to memory, or transposed on its way there.
  __device__ __forceinline__ void Put(int group, int c, int b,
                                      const float (&x)[4]) const {
    if (floats) {
      WriteFloats(group, c, 8 * (first_block + b), x);
    } else {
      wgmma::StoreMatricesTransposed(
          Staging(group) + (8 * b + lane % 8) * 32 + lane / 8 % 2 * 16,
          Bf16::Pack(x[0], x[1]), Bf16::Pack(x[2], x[3]));
    }
  }
  template <typename T>
  __device__ __forceinline__ T* Out(int c, int place, int column) const {
    return static_cast<T*>(p.out) + row.Token(c, place) * p.out_stride +
           int64_t{head} * s.value_dim + column;
  }
  __device__ __forceinline__ void WriteFloats(int group, int c, int first,
                                              const float (&sum)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int place = first + lane % 4 * 2 + i % 2;
      const int column = first_column + 64 * group + lane / 4 + i / 2 * 8;
      if (place >= row.Begin(c) && place < row.End(c) && column < s.value_dim) {
        *Out<float>(c, place, column) = sum[i];
      }
    }
  }
  // A warp's 16 columns of each token: 32 bytes, by two lanes.
  __device__ __forceinline__ void WriteStaged(int group, int c) const {
    const int column = first_column + 64 * group + lane % 2 * 8;
    if (column >= s.value_dim) return;
    const int first = 8 * first_block + lane / 2;
    __nv_bfloat16* to = Out<__nv_bfloat16>(c, first, column);
    uint32_t from = Staging(group) + lane / 2 * 32 + lane % 2 * 16;
    for (int i = 0; i < 8 * own_blocks; i += 16) {
      uint32_t x[4];
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(from));
      const int place = first + i;
      if (place >= row.Begin(c) && place < row.End(c) &&
          i + lane / 2 < 8 * own_blocks) {
        *reinterpret_cast<uint4*>(to) = make_uint4(x[0], x[1], x[2], x[3]);
      }
      to += 16 * p.out_stride;
      from += 16 * 32;
    }
  }

  const LinearPrefillParams& p;
  const Shape& s;
  const Layout<kGroups>& layout;
  const Row& row;
  int head;
  int thread;
  int warp;
  int lane;
  int first_column;  // of this warp's 16 of group 0
  int first_block;   // of 8 tokens, of those that this block sums
  int own_blocks;
  bool floats;  // outputs
};

}  // namespace linear_prefill
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_PREFILL_FINISH_CUH_
