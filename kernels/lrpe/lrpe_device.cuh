// Activation and encoding of one token, for the kernels of LRPE.
#ifndef RECURVE_KERNELS_LRPE_LRPE_DEVICE_CUH_
#define RECURVE_KERNELS_LRPE_LRPE_DEVICE_CUH_

#include <cstdint>

#include "kernels/common/device_math.cuh"
#include "kernels/lrpe/lrpe_cuda.h"

namespace recurve {
namespace lrpe {

constexpr int kThreads = 128;
constexpr int kHeadsPerThread = 16;  // share one set of angles

constexpr int kHeadsAtOnce = 2;  // whose loads are in flight together

enum class Softmax { kNone, kFeatures, kSequence };

// The power of two that holds a token's lanes; a lane has kVector features of
// the first half of a head and those that pair with them of the second.
inline int LanesPerToken(int64_t dim, int vector) {
  int lanes = 1;
  while (lanes * 2 * vector < dim) lanes *= 2;
  return lanes;
}

template <int kCount>
__device__ __forceinline__ void ActivateAll(Activation activation,
                                            float (&x)[kCount]) {
  if (activation == Activation::kNone) return;
  if (activation == Activation::kSilu) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      x[j] *= __fdividef(1.0f, 1.0f + __expf(-x[j]));
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) x[j] = DeviceActivate(activation, x[j]);
}

// Softmax over the features of kHeads heads; each of `lanes` lanes has two runs
// of a head's.
template <int kHeads, int kVector>
__device__ __forceinline__ void SoftmaxFeatures(int lanes, bool active,
                                                float (&x1)[kHeads][kVector],
                                                float (&x2)[kHeads][kVector]) {
  float max[kHeads];
  float sum[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    max[h] = -INFINITY;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      if (active) max[h] = fmaxf(max[h], fmaxf(x1[h][j], x2[h][j]));
    }
  }
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      max[h] = fmaxf(max[h], __shfl_xor_sync(0xffffffffu, max[h], offset));
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    sum[h] = 0.0f;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      x1[h][j] = __expf(x1[h][j] - max[h]);
      x2[h][j] = __expf(x2[h][j] - max[h]);
      if (active) sum[h] += x1[h][j] + x2[h][j];
    }
  }
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], offset);
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const float scale = __fdividef(1.0f, sum[h]);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      x1[h][j] *= scale;
      x2[h][j] *= scale;
    }
  }
}

// softmax(x) for kVector features, given each one's maximum and 1 / sum.
template <int kVector>
__device__ __forceinline__ void SoftmaxSequence(const float2* stats,
                                                float (&x)[kVector]) {
#pragma unroll
  for (int j = 0; j < kVector; j += 2) {
    const float4 two = *reinterpret_cast<const float4*>(stats + j);
    x[j] = __expf(x[j] - two.x) * two.y;
    x[j + 1] = __expf(x[j + 1] - two.z) * two.w;
  }
}

// Encodes heads [first_head, end_head) of token `token` of batch · length, if
// it is below end_token; to be called by whole warps. A thread makes its sines
// once and uses them for all its heads.
template <typename T, int kVector, bool kRotate, Softmax kSoftmax>
__device__ __forceinline__ void EncodeToken(const CudaLrpeParams& p, int lanes,
                                            int token, int end_token,
                                            int first_head, int end_head,
                                            const float2* stats) {
  const int lane = threadIdx.x % lanes;
  const int half = static_cast<int>(p.dim / 2);
  const int column = lane * kVector;
  const bool active = token < end_token && column < half;
  const int sequence = active ? token / static_cast<int>(p.length) : 0;
  const int index = active ? token - sequence * static_cast<int>(p.length) : 0;
  const T* x = static_cast<const T*>(p.x) + sequence * p.x_batch_stride +
               index * p.x_token_stride + column;
  T* y = static_cast<T*>(p.y) + sequence * p.y_batch_stride +
         index * p.y_token_stride + column;
  const int64_t position = p.offsets[sequence] + index;

  constexpr int kAngles = kRotate ? kVector : 2 * kVector;
  float cos[kAngles];
  float sin[kAngles];
  for (int first = first_head; first < end_head; first += kHeadsAtOnce) {
    Pack<T, kVector> in1[kHeadsAtOnce];
    Pack<T, kVector> in2[kHeadsAtOnce];
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      if (active && first + i < end_head) {
        const T* from = x + (first + i) * p.x_head_stride;
        in1[i] = LoadPack<T, kVector>(from);
        in2[i] = LoadPack<T, kVector>(from + half);
      }
    }
    // All heads at once, so that their exponentials and shuffles overlap.
    float x1[kHeadsAtOnce][kVector];
    float x2[kHeadsAtOnce][kVector];
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      Unpack(in1[i], x1[i]);
      Unpack(in2[i], x2[i]);
      if constexpr (kSoftmax == Softmax::kNone) {
        ActivateAll(p.activation, x1[i]);
        ActivateAll(p.activation, x2[i]);
      } else if constexpr (kSoftmax == Softmax::kSequence) {
        if (active && first + i < end_head) {
          const float2* columns =
              stats + (sequence * p.num_heads + first + i) * p.dim + column;
          SoftmaxSequence(columns, x1[i]);
          SoftmaxSequence(columns + half, x2[i]);
        }
      }
    }
    if constexpr (kSoftmax == Softmax::kFeatures) {
      SoftmaxFeatures(lanes, active, x1, x2);
    }
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      const int head = first + i;
      if (head >= end_head) break;
      if (active && (head == first_head || p.phase_head_stride != 0)) {
        const uint64_t* steps =
            p.phase_steps + head * p.phase_head_stride + column;
#pragma unroll
        for (int j = 0; j < kAngles; ++j) {
          PhaseCosSin(steps[j < kVector ? j : half + j - kVector], position,
                      &cos[j], &sin[j]);
        }
      }
      if (!active) continue;
      T* to = y + head * p.y_head_stride;
      float out[kVector];
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        out[j] =
            kRotate ? x1[i][j] * cos[j] - x2[i][j] * sin[j] : x1[i][j] * cos[j];
      }
      StorePack<T, kVector>(out, to);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        out[j] = kRotate ? x1[i][j] * sin[j] + x2[i][j] * cos[j]
                         : x2[i][j] * cos[kAngles - kVector + j];
      }
      StorePack<T, kVector>(out, to + half);
      if constexpr (!kRotate) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) out[j] = x1[i][j] * sin[j];
        StorePack<T, kVector>(out, to + 2 * half);
#pragma unroll
        for (int j = 0; j < kVector; ++j) out[j] = x2[i][j] * sin[kVector + j];
        StorePack<T, kVector>(out, to + 3 * half);
      }
    }
  }
}

}  // namespace lrpe
}  // namespace recurve

#endif  // RECURVE_KERNELS_LRPE_LRPE_DEVICE_CUH_
