// How the kernels for one row and few read it. Device code only.
#ifndef RECURVE_KERNELS_MATMUL_DECODE_ROWS_CUH_
#define RECURVE_KERNELS_MATMUL_DECODE_ROWS_CUH_

#include <cstdint>

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

// Eight of 16 bits likewise.
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

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_DECODE_ROWS_CUH_
