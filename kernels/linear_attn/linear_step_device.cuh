// What the two forms of the linear-attention step share on the device, beside
// the state's tile: q̃, k̃ and ṽ, made while the tile is on its way, and sums.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_STEP_DEVICE_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_STEP_DEVICE_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/device_math.cuh"
#include "kernels/linear_attn/linear_step_cuda.h"
#include "kernels/linear_attn/linear_step_plan.h"
#include "kernels/linear_attn/linear_step_tile.cuh"

namespace recurve {
namespace linear_step {

// Loads that are issued where they are written. The compiler would move them
// below the first early return, and so make one wait for memory into two.
__device__ __forceinline__ int32_t LoadNow(const int32_t* x) {
  int32_t value;
  asm volatile("ld.global.s32 %0, [%1];" : "=r"(value) : "l"(x));
  return value;
}
__device__ __forceinline__ int64_t LoadNow(const int64_t* x) {
  int64_t value;
  asm volatile("ld.global.s64 %0, [%1];" : "=l"(value) : "l"(x));
  return value;
}

// Waits for the kernel before this one (see overlap_previous), and lets the one
// after it start. At once where the launch does not overlap.
__device__ __forceinline__ void WaitForPrevious() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// q̃, k̃ and ṽ of one (row, head) in shared memory.
struct Vectors {
  float* q;  // [Dk]
  float* k;  // [Dk]
  float* v;  // [E]
};

// A thread's share of what Vectors is made from, still in flight. A block has
// at least D threads, but perhaps fewer than E.
template <typename IO>
struct Inputs {
  __device__ __forceinline__ void Load(const LinearStepParams& p,
                                       const Shape& s, int64_t row,
                                       int64_t head) {
    const int i = threadIdx.x;
    const int64_t at = row * p.stride + head * s.head_dim + i;
    value = static_cast<const IO*>(p.v) + row * p.stride + head * s.value_dim;
    if (i < s.head_dim) {
      q = static_cast<const IO*>(p.q)[at];
      k = static_cast<const IO*>(p.k)[at];
    }
    if (i < s.value_dim) v = value[i];
    if (i < s.angles) {
      phase_step = p.phase_steps[head * p.phase_head_stride + i];
    }
  }

  const IO* value = nullptr;  // [E]
  IO q = {};
  IO k = {};
  IO v = {};
  uint64_t phase_step = 0;
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

// LrpeApply of kernels/lrpe/lrpe.h, in place, for angle i = threadIdx.x.
__device__ __forceinline__ void Encode(LrpeType type, int head_dim, float cos,
                                       float sin, float* x) {
  const int i = threadIdx.x;
  if (type == LrpeType::kRotate) {
    const float x1 = x[i];
    const float x2 = x[head_dim / 2 + i];
    x[i] = x1 * cos - x2 * sin;
    x[head_dim / 2 + i] = x1 * sin + x2 * cos;
  } else {
    const float x1 = x[i];
    x[i] = x1 * cos;
    x[head_dim + i] = x1 * sin;
  }
}

// Fills `out` from `in`. The caller synchronises the block before reading it.
template <typename IO>
__device__ void MakeVectors(const LinearStepParams& p, const Shape& s,
                            const Inputs<IO>& in, int64_t position,
                            const Vectors& out) {
  const int i = threadIdx.x;
  float cos = 1.0f;
  float sin = 0.0f;
  if (i < s.angles) PhaseCosSin(in.phase_step, position, &cos, &sin);
  if (i < s.head_dim) {
    out.q[i] = DeviceActivate(p.q_activation, ToFloat(in.q));
    out.k[i] = DeviceActivate(p.k_activation, ToFloat(in.k));
  }
  float v = ToFloat(in.v);
#pragma unroll 1
  for (int j = i; j < s.value_dim; j += blockDim.x) {
    if (j != i) v = ToFloat(in.value[j]);
    out.v[j] = DeviceActivate(p.v_activation, v);
  }
  const bool softmax = p.q_activation == Activation::kSoftmax ||
                       p.k_activation == Activation::kSoftmax ||
                       p.v_activation == Activation::kSoftmax;
  if (softmax) {
    __syncthreads();
    // One copy of the code, for the sake of the instruction cache.
#pragma unroll 1
    for (int which = threadIdx.x / 32; which < 3; which += blockDim.x / 32) {
      const Activation activation = which == 0   ? p.q_activation
                                    : which == 1 ? p.k_activation
                                                 : p.v_activation;
      if (activation != Activation::kSoftmax) continue;
      SoftmaxByWarp(which == 0   ? out.q
                    : which == 1 ? out.k
                                 : out.v,
                    which == 2 ? s.value_dim : s.head_dim);
    }
  }
  if (p.position != LrpeType::kNone) {
    __syncthreads();
    if (i < s.angles) {
      Encode(p.position, s.head_dim, cos * p.scale, sin * p.scale, out.q);
      Encode(p.position, s.head_dim, cos, sin, out.k);
    }
  } else if (p.scale != 1.0f) {
    if (softmax) __syncthreads();
    if (i < s.head_dim) out.q[i] *= p.scale;
  }
}

// Adds up a tile's columns over the lanes and warps that share them, in order,
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

// Whether the code that runs has WaitForPrevious in it: what the driver makes
// of PTX for older devices has not, and would not wait for its inputs.
inline bool CanOverlap(const void* kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess &&
         attributes.ptxVersion >= 90;
}

// How a step is launched: a block a (column tile, head, row).
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

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_STEP_DEVICE_CUH_
