// Helpers of the decode-step kernels in stream_matmul.cu and decode_matmul.cu:
// copies, tile rows, gates. Device code only.
#ifndef RECURVE_KERNELS_MATMUL_DECODE_COPIES_CUH_
#define RECURVE_KERNELS_MATMUL_DECODE_COPIES_CUH_

#include <cstdint>

#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/matmul/decode_matmul_cuda.h"

namespace recurve {

// Copies `bytes` of 16 bytes to shared memory and zeros the rest.
__device__ __forceinline__ void CopyAsync(uint32_t to, const void* from,
                                          int bytes) {
  asm volatile(
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
      "l"(from), "r"(bytes)
      : "memory");
}
// Copies 16 bytes of weights, which are read once a step: with EvictFirst()
// they leave L2 before data that the next kernels reuse.
__device__ __forceinline__ uint64_t EvictFirst() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void CopyWeights(uint32_t to, const void* from,
                                            uint64_t policy) {
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, "
      "%2;" ::"r"(to),
      "l"(from), "l"(policy)
      : "memory");
}

// The row of w in row `row` of a tile whose rows begin at `first`, a multiple
// of 16. With a gate, 8 rows of the first half alternate with their 8 partners
// of the second half, so that a lane of mma.m16n8k16 has both. Rows beyond the
// last repeat the last, and are not written.
__device__ __forceinline__ int64_t TileOutput(const DecodeMatmulParams& p,
                                              int64_t first, int row) {
  if (!p.gate) return min(first + row, p.outputs - 1);
  const int64_t half = p.outputs / 2;
  const int64_t feature = min(first / 2 + row / 16 * 8 + row % 8, half - 1);
  return row / 8 % 2 == 0 ? feature : half + feature;
}

// A gated feature of a row, from its two outputs.
template <typename T>
__device__ __forceinline__ void WriteGated(const DecodeMatmulParams& p,
                                           int64_t row, int64_t feature,
                                           float gate, float up) {
  const float value = DeviceActivate(p.activation, gate) * up;
  const int64_t at = row * p.y_stride + feature;
  if (p.y_is_half) {
    reinterpret_cast<T*>(p.y)[at] = Half<T>::From(value);
  } else {
    p.y[at] = value;
  }
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_DECODE_COPIES_CUH_
