// Encoding of one token of a whole sequence.
#ifndef RECURVE_KERNELS_SEEDS_LRPE_LRPE_TOKEN_CUH_
#define RECURVE_KERNELS_SEEDS_LRPE_LRPE_TOKEN_CUH_

#include <cstdint>

#include "kernels/common/device_math.cuh"
#include "kernels/lrpe/lrpe_device.cuh"
#include "kernels/seeds/lrpe/lrpe_cuda.h"

namespace recurve {
namespace lrpe {

constexpr float kLog2E = 1.442695041f;
constexpr int kThreads = 128;
constexpr int kHeadsPerThread = 16;  // share one set of angles

// Heads whose loads are in flight while others are encoded. Rotate keeps half
// the sines, and gains more from occupancy.
template <bool kRotate>
constexpr int kHeadsAhead = kRotate ? 1 : 2;
// Blocks a multiprocessor that the register count must allow.
template <bool kRotate>
constexpr int kBlocks = kRotate ? 7 : 4;

enum class Softmax { kNone, kFeatures, kSequence };

// softmax(x) for kVector features, given the shift of each (lrpe_stats.cuh).
template <int kVector>
__device__ __forceinline__ void SoftmaxSequence(const float* shift,
                                                float (&x)[kVector]) {
#pragma unroll
  for (int j = 0; j < kVector; j += 4) {
    const float4 four = __ldg(reinterpret_cast<const float4*>(shift + j));
    x[j] = FastExp2(fmaf(x[j], kLog2E, -four.x));
    x[j + 1] = FastExp2(fmaf(x[j + 1], kLog2E, -four.y));
    x[j + 2] = FastExp2(fmaf(x[j + 2], kLog2E, -four.z));
    x[j + 3] = FastExp2(fmaf(x[j + 3], kLog2E, -four.w));
  }
}

// Encodes heads [first_head, end_head) of token `token` of batch · length, if
// it is below end_token; called by whole warps. A thread makes its sines once
// for all its heads.
template <typename T, int kVector, bool kRotate, Softmax kSoftmax>
__device__ __forceinline__ void EncodeToken(const CudaLrpeParams& p, int lanes,
                                            int token, int end_token,
                                            int first_head, int end_head,
                                            const float* shift) {
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

  constexpr int kHeadsAtOnce = kHeadsAhead<kRotate>;
  constexpr int kAngles = kRotate ? kVector : 2 * kVector;
  float cos[kAngles];
  float sin[kAngles];
  Pack<T, kVector> next1[kHeadsAtOnce];
  Pack<T, kVector> next2[kHeadsAtOnce];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      if (active && first + i < end_head) {
        const T* from = x + (first + i) * p.x_head_stride;
        next1[i] = LoadPack<T, kVector>(from);
        next2[i] = LoadPack<T, kVector>(from + half);
      }
    }
  };
  load(first_head);
  for (int first = first_head; first < end_head; first += kHeadsAtOnce) {
    Pack<T, kVector> in1[kHeadsAtOnce];
    Pack<T, kVector> in2[kHeadsAtOnce];
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      in1[i] = next1[i];
      in2[i] = next2[i];
    }
    load(first + kHeadsAtOnce);
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
      float x1[kVector];
      float x2[kVector];
      Unpack(in1[i], x1);
      Unpack(in2[i], x2);
      if constexpr (kSoftmax == Softmax::kNone) {
        ActivateAll(p.activation, x1);
        ActivateAll(p.activation, x2);
      } else if constexpr (kSoftmax == Softmax::kFeatures) {
        SoftmaxFeatures(lanes, active, x1, x2);
      } else if (active) {
        const float* columns =
            shift + (sequence * p.num_heads + head) * p.dim + column;
        SoftmaxSequence(columns, x1);
        SoftmaxSequence(columns + half, x2);
      }
      if (!active) continue;
      T* to = y + head * p.y_head_stride;
      float out[kVector];
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        out[j] = kRotate ? x1[j] * cos[j] - x2[j] * sin[j] : x1[j] * cos[j];
      }
      StorePack<T, kVector>(out, to);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        out[j] = kRotate ? x1[j] * sin[j] + x2[j] * cos[j]
                         : x2[j] * cos[kAngles - kVector + j];
      }
      StorePack<T, kVector>(out, to + half);
      if constexpr (!kRotate) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) out[j] = x1[j] * sin[j];
        StorePack<T, kVector>(out, to + 2 * half);
#pragma unroll
        for (int j = 0; j < kVector; ++j) out[j] = x2[j] * sin[kVector + j];
        StorePack<T, kVector>(out, to + 3 * half);
      }
    }
  }
}

}  // namespace lrpe
}  // namespace recurve

#endif  // RECURVE_KERNELS_SEEDS_LRPE_LRPE_TOKEN_CUH_
