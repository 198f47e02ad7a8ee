// Heads of queries and keys with norm and position, a warp each: device
// functions of append and of prefill.
#ifndef RECURVE_KERNELS_ATTENTION_ATTENTION_ENCODE_CUH_
#define RECURVE_KERNELS_ATTENTION_ATTENTION_ENCODE_CUH_

#include "kernels/attention/attention_cuda.h"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"

namespace recurve {

// x = features 8 · lane to 8 · lane + 7 of one head, zero beyond `dim`.
// `aligned`: heads begin at 16 bytes.
__device__ __forceinline__ void AttentionLoadOctet(const float* head, int dim,
                                                   bool aligned,
                                                   float (&x)[8]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = 0.0f;
  if (8 * lane >= dim) return;
  if (aligned) {
    const auto* from = reinterpret_cast<const float4*>(head) + 2 * lane;
    const float4 low = from[0];
    const float4 high = from[1];
    x[0] = low.x;
    x[1] = low.y;
    x[2] = low.z;
    x[3] = low.w;
    x[4] = high.x;
    x[5] = high.y;
    x[6] = high.z;
    x[7] = high.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = head[8 * lane + i];
}

// Norm, then position, of the head whose octets the lanes of a converged warp
// have. `row` is that of the tables of angles. `dim` is a multiple of 16, so
// features that turn together are in two lanes.
__device__ __forceinline__ void AttentionEncode(
    const AttentionCudaNorm& norm, const AttentionCudaPosition& position,
    int64_t row, int dim, float (&x)[8]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool exists = 8 * lane < dim;
  if (norm.weight != nullptr) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = __fmaf_rn(x[i], x[i], sum);
    const float mean = __fdiv_rn(LaneSum(sum), static_cast<float>(dim));
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, norm.eps)));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float weight = exists ? norm.weight[8 * lane + i] : 0.0f;
      x[i] = __fmul_rn(__fmul_rn(x[i], scale), weight);
    }
  }
  if (position.type != LrpeType::kRotate) return;
  const int half = dim / 16;  // octets
  const bool lower = lane < half;
  const int other = lower ? lane + half : exists ? lane - half : lane;
  const int64_t angle = row * (dim / 2) + 8 * (lower ? lane : other);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float y = __shfl_sync(0xffffffffu, x[i], other);
    const float c = exists ? position.cos[angle + i] : 1.0f;
    const float s = exists ? position.sin[angle + i] : 0.0f;
    x[i] = lower ? __fsub_rn(__fmul_rn(x[i], c), __fmul_rn(y, s))
                 : __fadd_rn(__fmul_rn(y, s), __fmul_rn(x[i], c));
  }
}

// Eight neighbouring elements, in one store or two.
template <typename T>
__device__ __forceinline__ void AttentionStoreOctet(T* to,
                                                    const float (&x)[8]) {
  if constexpr (sizeof(T) == 4) {
    reinterpret_cast<float4*>(to)[0] = {x[0], x[1], x[2], x[3]};
    reinterpret_cast<float4*>(to)[1] = {x[4], x[5], x[6], x[7]};
  } else {
    *reinterpret_cast<uint4*>(to) = {
        Half<T>::Pack(x[0], x[1]), Half<T>::Pack(x[2], x[3]),
        Half<T>::Pack(x[4], x[5]), Half<T>::Pack(x[6], x[7])};
  }
}

inline bool AttentionPositionComplete(const AttentionCudaPosition& position) {
  return position.type == LrpeType::kNone ||
         (position.type == LrpeType::kRotate && position.cos != nullptr &&
          position.sin != nullptr);
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_ATTENTION_ATTENTION_ENCODE_CUH_
