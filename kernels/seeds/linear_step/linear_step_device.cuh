// Device functions of the linear-attention step: q̃, k̃ and ṽ, made during the
// tile's loads, and sums.
#ifndef RECURVE_KERNELS_SEEDS_LINEAR_STEP_LINEAR_STEP_DEVICE_CUH_
#define RECURVE_KERNELS_SEEDS_LINEAR_STEP_LINEAR_STEP_DEVICE_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/seeds/linear_step/linear_step_cuda.h"
#include "kernels/seeds/linear_step/linear_step_plan.h"
#include "kernels/seeds/linear_step/linear_step_tile.cuh"

namespace recurve {
namespace linear_step {

// LoadNow of one of a thread's elements, if `when`: predicated, since ptxas
// waits for earlier loads at a branch.
__device__ __forceinline__ void LoadNowIf(bool when, const uint64_t* x,
                                          uint64_t* value) {
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.u64 %0, [%1]; }"
      : "+l"(*value)
      : "l"(x), "r"(static_cast<int>(when)));
}
__device__ __forceinline__ void LoadNowIf(bool when, const float* x,
                                          float* value) {
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.f32 %0, [%1]; }"
      : "+f"(*value)
      : "l"(x), "r"(static_cast<int>(when)));
}
__device__ __forceinline__ void LoadNowIf(bool when, const __nv_bfloat16* x,
                                          __nv_bfloat16* value) {
  uint16_t bits = __bfloat16_as_ushort(*value);
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.u16 %0, [%1]; }"
      : "+h"(bits)
      : "l"(x), "r"(static_cast<int>(when)));
  *value = __ushort_as_bfloat16(bits);
}

// Waits for the previous kernel (see overlap_previous), and lets the next one
// start. Returns at once if the launch does not overlap.
__device__ __forceinline__ void TakeTurn() {
  WaitForPrevious();
  LaunchDependents();
}

// Vectors of one (row, head), in shared memory: first q, k and v as loaded,
// then q̃, k̃ and ṽ.
struct Vectors {
  float* q;           // [Dk]
  float* k;           // [Dk]
  float* v;           // [E]
  float* half_turns;  // [angles] PhaseHalfTurns; GatherColumns may reuse it
  float* decay;       // [1]
};

// A thread's part of the inputs of Vectors, still in flight. A block has at
// least D threads, but perhaps fewer than E.
//
// With few blocks, where latency counts, staging comes before the loads of the
// state, and a barrier keeps ptxas from moving these up: it gives all loads in
// flight one scoreboard, so later uses would wait for the state.
template <typename IO>
struct Inputs {
  // Inputs that no earlier kernel writes.
  __device__ __forceinline__ void LoadSteady(const LinearStepParams& p,
                                             const Shape& s, int64_t head) {
    const int i = threadIdx.x;
    LoadNowIf(i < s.angles, p.phase_steps + head * p.phase_head_stride + i,
              &phase_step);
    LoadNowIf(i == 0, p.decay + head, &decay);
  }
  __device__ __forceinline__ void StageSteady(const Shape& s, int64_t position,
                                              const Vectors& to) const {
    const int i = threadIdx.x;
    if (i < s.angles) to.half_turns[i] = PhaseHalfTurns(phase_step, position);
    if (i == 0) *to.decay = decay;
  }
  __device__ __forceinline__ void Load(const LinearStepParams& p,
                                       const Shape& s, int64_t row,
                                       int64_t head, bool when) {
    const int i = threadIdx.x;
    const int64_t at = row * p.stride + head * s.head_dim + i;
    value = static_cast<const IO*>(p.v) + row * p.stride + head * s.value_dim;
    LoadNowIf(when && i < s.head_dim, static_cast<const IO*>(p.q) + at, &q);
    LoadNowIf(when && i < s.head_dim, static_cast<const IO*>(p.k) + at, &k);
    LoadNowIf(when && i < s.value_dim, value + i, &v);
  }
  __device__ __forceinline__ void Stage(const Shape& s,
                                        const Vectors& to) const {
    const int i = threadIdx.x;
    if (i < s.head_dim) {
      to.q[i] = ToFloat(q);
      to.k[i] = ToFloat(k);
    }
    if (i < s.value_dim) to.v[i] = ToFloat(v);
    for (int j = i + blockDim.x; j < s.value_dim; j += blockDim.x) {
      to.v[j] = ToFloat(value[j]);
    }
  }

  const IO* value = nullptr;  // [E]
  IO q = {};
  IO k = {};
  IO v = {};
  uint64_t phase_step = 0;
  float decay = 0.0f;
};

// softmax(x[0..n)), n at most 256, by one warp.
__device__ inline void SoftmaxByWarp(float* x, int n) {
  constexpr int kCount = kLinearMaxHeadDim / 32;
  const int lane = threadIdx.x % 32;
  float y[kCount];
  float max = -INFINITY;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    y[i] = lane + 32 * i < n ? x[lane + 32 * i] : -INFINITY;
    max = fmaxf(max, y[i]);
  }
  max = LaneMax(max);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    y[i] = expf(y[i] - max);
    sum += y[i];
  }
  const float scale = 1.0f / LaneSum(sum);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (lane + 32 * i < n) x[lane + 32 * i] = y[i] * scale;
  }
}

__device__ __forceinline__ bool IsPlain(Activation activation) {
  return activation == Activation::kNone || activation == Activation::kSilu;
}
// REQUIRES: IsPlain(activation), or x is already activated.
__device__ __forceinline__ float PlainActivate(Activation activation, float x) {
  const float silu = x * DeviceSigmoid(x);
  return activation == Activation::kSilu ? silu : x;
}

// One of q, k and v.
struct Part {
  Activation activation;
  float* x;
  int size;
};
__device__ __forceinline__ Part PartOf(const LinearStepParams& p,
                                       const Shape& s, const Vectors& vectors,
                                       int which) {
  if (which == 0) return {p.q_activation, vectors.q, s.head_dim};
  if (which == 1) return {p.k_activation, vectors.k, s.head_dim};
  return {p.v_activation, vectors.v, s.value_dim};
}

// Activations that are not plain, in place. One copy of the code, away from the
// usual path. Synchronises the block.
__device__ __forceinline__ void ActivateInPlace(const LinearStepParams& p,
                                                const Shape& s,
                                                const Vectors& vectors) {
#pragma unroll 1
  for (int which = 0; which < 3; ++which) {
    const Part part = PartOf(p, s, vectors, which);
    if (IsPlain(part.activation)) continue;
    if (part.activation == Activation::kSoftmax) continue;  // below
#pragma unroll 1
    for (int i = threadIdx.x; i < part.size; i += blockDim.x) {
      part.x[i] = DeviceActivate(part.activation, part.x[i]);
    }
  }
#pragma unroll 1
  for (int which = threadIdx.x / 32; which < 3; which += blockDim.x / 32) {
    const Part part = PartOf(p, s, vectors, which);
    if (part.activation == Activation::kSoftmax) {
      SoftmaxByWarp(part.x, part.size);
    }
  }
  __syncthreads();
}

// Activation and LrpeApply of kernels/lrpe/lrpe.h, in place, for angle i =
// threadIdx.x.
__device__ __forceinline__ void Encode(Activation activation, LrpeType type,
                                       int head_dim, float cos, float sin,
                                       float* x) {
  const int i = threadIdx.x;
  const float x1 = PlainActivate(activation, x[i]);
  if (type == LrpeType::kRotate) {
    const float x2 = PlainActivate(activation, x[head_dim / 2 + i]);
    x[i] = x1 * cos - x2 * sin;
    x[head_dim / 2 + i] = x1 * sin + x2 * cos;
  } else {
    x[i] = x1 * cos;
    x[head_dim + i] = x1 * sin;
  }
}

// Makes q̃, k̃ and ṽ from the staged Inputs. The caller synchronises the block
// before reading them.
__device__ __forceinline__ void MakeVectors(const LinearStepParams& p,
                                            const Shape& s,
                                            const Vectors& vectors) {
  const int i = threadIdx.x;
  const bool plain = IsPlain(p.q_activation) && IsPlain(p.k_activation) &&
                     IsPlain(p.v_activation);
  if (!plain) ActivateInPlace(p, s, vectors);
  if (p.v_activation == Activation::kSilu) {
    for (int j = i; j < s.value_dim; j += blockDim.x) {
      vectors.v[j] = PlainActivate(p.v_activation, vectors.v[j]);
    }
  }
  if (p.position != LrpeType::kNone) {
    if (i >= s.angles) return;
    float cos, sin;
    sincospif(vectors.half_turns[i], &sin, &cos);
    Encode(p.q_activation, p.position, s.head_dim, cos * p.scale, sin * p.scale,
           vectors.q);
    Encode(p.k_activation, p.position, s.head_dim, cos, sin, vectors.k);
  } else if (i < s.head_dim) {
    vectors.q[i] = PlainActivate(p.q_activation, vectors.q[i]) * p.scale;
    vectors.k[i] = PlainActivate(p.k_activation, vectors.k[i]);
  }
}

// Adds a tile's columns over the lanes and warps that share them, in order,
// into partial[0..warps) of [warps, columns]. Synchronises the block.
template <int kVector>
__device__ __forceinline__ void GatherColumns(float (&sum)[kVector],
                                              float* partial) {
  constexpr int kLanes = kLinearTileColumns / kVector;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
#pragma unroll
    for (int offset = kLanes; offset < 32; offset *= 2) {
      sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], offset);
    }
    if (lane < kLanes) {
      partial[threadIdx.x / 32 * kLinearTileColumns + lane * kVector + j] =
          sum[j];
    }
  }
  __syncthreads();
}

__device__ __forceinline__ float ColumnSum(const float* partial, int column) {
  float sum = 0.0f;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) {
    sum += partial[warp * kLinearTileColumns + column];
  }
  return sum;
}

// The output of a padding row: 0 in this block's columns.
template <typename IO>
__device__ void WriteZeros(const LinearStepParams& p, const Shape& s) {
  IO* out = static_cast<IO*>(p.out) + int64_t{blockIdx.z} * p.out_stride +
            int64_t{blockIdx.y} * s.value_dim;
  for (int c = threadIdx.x; c < kLinearTileColumns; c += blockDim.x) {
    const int column = blockIdx.x * kLinearTileColumns + c;
    if (column < s.value_dim) out[column] = FromFloat<IO>(0.0f);
  }
}

// Whether the code that runs contains TakeTurn: the driver's code from
// PTX for older devices does not, and would not wait for its inputs.
inline bool CanOverlap(const void* kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess &&
         attributes.ptxVersion >= 90;
}

// Launch of a step: a block a (column tile, head, row).
struct LaunchConfig {
  LaunchConfig(const LinearStepParams& p, const LinearStepPlan& plan,
               size_t shared_bytes, const void* kernel, cudaStream_t stream) {
    config.gridDim = dim3(plan.tiles, static_cast<unsigned>(p.num_heads),
                          static_cast<unsigned>(p.max_rows));
    config.blockDim = dim3(plan.threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &overlap;
    config.numAttrs = p.overlap_previous && CanOverlap(kernel) ? 1 : 0;
  }
  LaunchConfig(const LaunchConfig&) = delete;  // config points into it
  LaunchConfig& operator=(const LaunchConfig&) = delete;

  cudaLaunchConfig_t config = {};
  cudaLaunchAttribute overlap = {};
};

}  // namespace linear_step
}  // namespace recurve

#endif  // RECURVE_KERNELS_SEEDS_LINEAR_STEP_LINEAR_STEP_DEVICE_CUH_
