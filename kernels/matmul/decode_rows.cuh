// Reading one or a few rows to shared memory, with their norm: helpers of
// stream_matmul.cu and product_chain.cu. Device code only.
#ifndef RECURVE_KERNELS_MATMUL_DECODE_ROWS_CUH_
#define RECURVE_KERNELS_MATMUL_DECODE_ROWS_CUH_

#include <cstdint>

#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"

namespace recurve {

__device__ __forceinline__ float AddSquares(const float4& v, float squares) {
  squares = fmaf(v.x, v.x, squares);
  squares = fmaf(v.y, v.y, squares);
  squares = fmaf(v.z, v.z, squares);
  return fmaf(v.w, v.w, squares);
}

// Four columns from `c` on, zeros beyond the last.
__device__ __forceinline__ float4 LoadFour(const float* from, int c, int cols) {
  if (c + 4 <= cols) return *reinterpret_cast<const float4*>(from + c);
  float4 v = make_float4(0, 0, 0, 0);
  if (c < cols) v.x = from[c];
  if (c + 1 < cols) v.y = from[c + 1];
  if (c + 2 < cols) v.z = from[c + 2];
  return v;
}

// Eight 16-bit columns in the same way.
template <typename T>
__device__ __forceinline__ uint4 LoadEight(const T* from, int c, int cols) {
  if (c + 8 <= cols) return *reinterpret_cast<const uint4*>(from + c);
  if (c >= cols) return make_uint4(0, 0, 0, 0);
  uint32_t words[4] = {};
#pragma unroll
  for (int j = 0; j < 7; ++j) {
    if (c + j < cols) {
      words[j / 2] |= uint32_t{reinterpret_cast<const uint16_t*>(from)[c + j]}
                      << 16 * (j % 2);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Normalises and rounds rows to shared memory, `to_stride` bytes apart. Each of
// kThreads threads has columns 4 (thread + i · kThreads) to + 3 of all rows in
// v, and their weights. The sum is norm.cu's bit for bit: thread i of 256 takes
// columns 4i to 4i + 3 of each 1024, lanes combine in a butterfly, the 8 warps
// in order. `partial` is shared memory for a float of each row and warp;
// `barrier` is these threads'. Columns from `inputs` on are not written.
template <typename T, int kThreads, int kRows, int kFours, typename Int,
          typename Barrier>
__device__ __forceinline__ void WriteNormed(const float4 (&v)[kRows][kFours],
                                            const float4 (&weight)[kFours],
                                            int cols, Int inputs, float eps,
                                            float* partial, char* to,
                                            int to_stride,
                                            const Barrier& barrier) {
  constexpr int kWarps = kThreads / 32;
  const auto column = [](int i) {
    return 4 * (static_cast<int>(threadIdx.x) + i * kThreads);
  };
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (column(i) < cols) squares = AddSquares(v[r][i], squares);
    }
    squares = LaneSum(squares);
    if (threadIdx.x % 32 == 0) partial[r * kWarps + threadIdx.x / 32] = squares;
  }
  barrier();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += partial[r * kWarps + w];
    const float scale = 1.0f / sqrtf(sum / static_cast<float>(cols) + eps);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (column(i) >= inputs) break;
      *reinterpret_cast<uint2*>(to + r * to_stride + 2 * column(i)) =
          make_uint2(Half<T>::Pack(v[r][i].x * scale * weight[i].x,
                                   v[r][i].y * scale * weight[i].y),
                     Half<T>::Pack(v[r][i].z * scale * weight[i].z,
                                   v[r][i].w * scale * weight[i].w));
    }
  }
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_DECODE_ROWS_CUH_
