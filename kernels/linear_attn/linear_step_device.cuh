// What the two forms of the linear-attention step share on the device: a block
// loads its tile of a state into registers, and makes q̃, k̃ and ṽ meanwhile.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_STEP_DEVICE_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_STEP_DEVICE_CUH_

#include <cstdint>

#include "kernels/common/device_math.cuh"
#include "kernels/linear_attn/linear_step_cuda.h"
#include "kernels/linear_attn/linear_step_plan.h"

namespace recurve {
namespace linear_step {

// The dimensions of a launch, in 32 bits and ready for the device.
struct Shape {
  int head_dim;
  int key_dim;
  int value_dim;
  int angles;
};

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

// One thread's part of a state tile.
template <typename State>
struct Tile {
  static constexpr int kVector = 16 / sizeof(State);
  static constexpr int kColumns = kLinearLanesPerRow * kVector;

  __device__ Tile(State* head_state, const Shape& s)
      : column(blockIdx.x * kColumns +
               threadIdx.x % kLinearLanesPerRow * kVector),
        row(threadIdx.x / 32 * kLinearRowsPerWarp +
            threadIdx.x % 32 / kLinearLanesPerRow),
        state(head_state + int64_t{row} * s.value_dim + column),
        row_step(kRowStep * s.value_dim),
        rows(column < s.value_dim ? (s.key_dim - row + kRowStep - 1) / kRowStep
                                  : 0) {}

  __device__ __forceinline__ void Load() {
#pragma unroll
    for (int i = 0; i < kLinearRowsPerLane; ++i) {
      if (i < rows) raw[i] = __ldcs(Address(i));
    }
  }

  __device__ __forceinline__ void Get(int i, float (&x)[kVector]) const {
    const uint32_t word[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (kVector == 4) {
        x[j] = __uint_as_float(word[j]);
      } else {  // bfloat16 is the upper half of a float32
        x[2 * j] = __uint_as_float(word[j] << 16);
        x[2 * j + 1] = __uint_as_float(word[j] & 0xffff0000u);
      }
    }
  }

  __device__ __forceinline__ uint4* Address(int i) const {
    return reinterpret_cast<uint4*>(state + int64_t{i} * row_step);
  }

  // The state row of register i.
  __device__ __forceinline__ int Row(int i) const { return row + i * kRowStep; }

  static constexpr int kRowStep = 32 / kLinearLanesPerRow;
  int column;    // first of kVector
  int row;       // first; the others follow kRowStep apart
  State* state;  // at (row, column)
  int row_step;  // elements between this thread's rows
  int rows;      // that exist, of kLinearRowsPerLane; may exceed it
  uint4 raw[kLinearRowsPerLane];
};

// float32 to bfloat16, up with the probability that the bits cut off say.
// `random` is uniform in 16 bits. NaN and the infinities stay what they are.
__device__ __forceinline__ uint32_t RoundStochastically(float x,
                                                        uint32_t random) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
  return (bits + random) >> 16;
}

// Stores a thread's part of state row `i`. `element` is the index of its first
// element in the slot.
__device__ __forceinline__ void StoreRow(const Tile<float>& tile, int i,
                                         const float (&x)[4], uint64_t, int64_t,
                                         int64_t) {
  __stcs(tile.Address(i),
         make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]),
                    __float_as_uint(x[2]), __float_as_uint(x[3])));
}
__device__ __forceinline__ void StoreRow(const Tile<__nv_bfloat16>& tile, int i,
                                         const float (&x)[8], uint64_t seed,
                                         int64_t element, int64_t position) {
  const uint4 random =
      DevicePhilox4x32(seed, static_cast<uint64_t>(element) / 8,
                       static_cast<uint64_t>(position));
  const uint32_t word[4] = {random.x, random.y, random.z, random.w};
  uint32_t packed[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    packed[j] = RoundStochastically(x[2 * j], word[j] & 0xffffu) |
                RoundStochastically(x[2 * j + 1], word[j] >> 16) << 16;
  }
  __stcs(tile.Address(i),
         make_uint4(packed[0], packed[1], packed[2], packed[3]));
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
  __device__ Inputs(const LinearStepParams& p, const Shape& s, int64_t row,
                    int64_t head)
      : value(static_cast<const IO*>(p.v) + row * p.stride +
              head * s.value_dim) {
    const int i = threadIdx.x;
    const int64_t at = row * p.stride + head * s.head_dim + i;
    if (i < s.head_dim) {
      q = static_cast<const IO*>(p.q)[at];
      k = static_cast<const IO*>(p.k)[at];
    }
    if (i < s.value_dim) v = value[i];
    if (i < s.angles)
      phase_step = p.phase_steps[head * p.phase_head_stride + i];
  }

  const IO* value;  // [E]
  IO q, k, v;
  uint64_t phase_step;
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
  if (i < s.value_dim) out.v[i] = DeviceActivate(p.v_activation, ToFloat(in.v));
  for (int j = i + blockDim.x; j < s.value_dim; j += blockDim.x) {
    out.v[j] = DeviceActivate(p.v_activation, ToFloat(in.value[j]));
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
// into partial[0..warps) of [warps, kColumns]. Synchronises the block.
template <int kVector>
__device__ __forceinline__ void GatherColumns(float (&sum)[kVector],
                                              float* partial) {
  constexpr int kColumns = kLinearLanesPerRow * kVector;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
#pragma unroll
    for (int offset = kLinearLanesPerRow; offset < 32; offset *= 2) {
      sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], offset);
    }
    if (lane < kLinearLanesPerRow) {
      partial[threadIdx.x / 32 * kColumns + lane * kVector + j] = sum[j];
    }
  }
  __syncthreads();
}

template <int kColumns>
__device__ __forceinline__ float ColumnSum(const float* partial, int column) {
  float sum = 0.0f;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) {
    sum += partial[warp * kColumns + column];
  }
  return sum;
}

// The output of a padding row: 0 in this block's columns.
template <typename IO>
__device__ void WriteZeros(const LinearStepParams& p, const Shape& s,
                           int columns) {
  IO* out = static_cast<IO*>(p.out) + int64_t{blockIdx.z} * p.out_stride +
            int64_t{blockIdx.y} * s.value_dim;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    const int column = blockIdx.x * columns + c;
    if (column < s.value_dim) out[column] = FromFloat<IO>(0.0f);
  }
}

}  // namespace linear_step
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_STEP_DEVICE_CUH_
