// References of a column's scores, and maxima and sums over the tokens of a
// warpgroup.
#ifndef RECURVE_KERNELS_TPA_DECODE_TPA_SOFTMAX_CUH_
#define RECURVE_KERNELS_TPA_DECODE_TPA_SOFTMAX_CUH_

#include <type_traits>

#include "kernels/common/async_copy.cuh"
#include "kernels/tpa/decode/tpa_decode.cuh"

namespace recurve {

// Weights are 2^(score - reference). Each chunk has a reference for each
// column, which does not depend on other columns (unless a page has only NaN
// scores: then the results are NaN, too).
//
// bfloat16 has the range of float32, so a weight's precision does not depend on
// its size: the reference is 0 if the greatest score of the chunk's first page
// is from kTpaLeast to kTpaSlack, and it need not be computed while all scores
// are. Otherwise it is that score. After the first page it is raised to a score
// more than kTpaSlack above it. Weights that count, down to 2^-24 of the
// greatest, are far from 2^-126, and sums from 2^127, also times factors of
// values from some 2^-38 to 2^80.
//
// float16 lacks that range: the reference is the greatest score so far.
template <typename T>
inline constexpr bool kTpaFixedReference = !std::is_same_v<T, __half>;
template <typename T>
inline constexpr float kTpaSlack = kTpaFixedReference<T> ? 32.0f : 0.0f;
inline constexpr float kTpaLeast = -64.0f;

// The reference of a chunk whose first page has this greatest score: minus
// infinity if it has none.
template <typename T>
__device__ __forceinline__ float TpaReference(float max) {
  const bool zero =
      kTpaFixedReference<T> && max <= kTpaSlack<T> && max >= kTpaLeast;
  return zero ? 0.0f : max;
}

// Whether any of these scores, relative to their reference, needs another one;
// `fresh`: they are of a chunk's first page, which has none yet. NaN does not:
// it becomes the result.
template <typename T, int kOctets>
__device__ __forceinline__ bool TpaOutOfRange(const float (&scores)[kOctets][4],
                                              bool fresh) {
  bool out = !kTpaFixedReference<T> && fresh;
  const float least = fresh ? kTpaLeast : kMinusInfinity;
#pragma unroll
  for (int j = 0; j < kOctets; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      out |= fmaxf(scores[j][i], scores[j][i + 2]) > kTpaSlack<T>;
      if (kTpaFixedReference<T>)
        out |= fminf(scores[j][i], scores[j][i + 2]) < least;
    }
  }
  return out;
}

// The maximum (or the sum) over all tokens of the warpgroup, for each column of
// this thread: over lanes with the same columns each lane takes a part of the
// columns, over warps through `memory` [columns, 4]. `barrier` is the
// warpgroup's.
template <bool kMax, int kOwn>
__device__ __forceinline__ void TpaOverWarps(float (&value)[kOwn],
                                             float* memory, int lane, int warp,
                                             int barrier) {
  const auto join = [](float a, float b) { return kMax ? fmaxf(a, b) : a + b; };
  constexpr float kNothing = kMax ? kMinusInfinity : 0.0f;
  float own[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k) own[k] = value[k];
  int first = 0;  // own[i] is of column first + i, for i < count
  int count = kOwn;
#pragma unroll
  for (int step = 0; step < 3; ++step) {
    constexpr int kHalves[] = {kOwn, (kOwn + 1) / 2, (kOwn + 3) / 4,
                               (kOwn + 7) / 8};
    const int lane_bit = 4 << step;
    const bool upper = (lane & lane_bit) != 0;
    const int size = kHalves[step];
    const int half = kHalves[step + 1];
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float low = own[i];
      const float high = half + i < size ? own[half + i] : kNothing;
      const float other =
          __shfl_xor_sync(0xffffffffu, upper ? low : high, lane_bit);
      own[i] = upper ? join(other, high) : join(low, other);
    }
    first += upper ? half : 0;
    count = upper ? count - half : min(count, half);
  }
#pragma unroll
  for (int i = 0; i < (kOwn + 7) / 8; ++i) {
    const int k = first + i;
    if (i < count) {
      memory[4 * (8 * (k / 2) + 2 * (lane % 4) + k % 2) + warp] = own[i];
    }
  }
  NamedBarrier(barrier, 128);
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    const float4 all = *reinterpret_cast<const float4*>(
        memory + 4 * (8 * (k / 2) + 2 * (lane % 4) + k % 2));
    value[k] = join(join(all.x, all.y), join(all.z, all.w));
  }
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_DECODE_TPA_SOFTMAX_CUH_
