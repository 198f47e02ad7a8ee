#include <cuda_bf16.h>

#include "kernels/common/device_math.cuh"
#include "kernels/lrpe/lrpe_cuda.h"
#include "kernels/lrpe/lrpe_stats.cuh"

namespace recurve {
namespace {

constexpr int kThreads = 128;
constexpr int kHeadsPerThread = 16;       // share one set of angles
constexpr int kHeadsAtOnce = 2;  // whose loads are in flight together
constexpr int kBlocks = 4;      // of a multiprocessor

enum class Softmax { kNone, kFeatures, kSequence };

// The power of two that holds a token's lanes; a lane has kVector features of
// the first half of a head and those that pair with them of the second.
int LanesPerToken(int64_t dim, int vector) {
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
    for (int j = 0; j < kCount; ++j) x[j] *= DeviceSigmoid(x[j]);
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) x[j] = DeviceActivate(activation, x[j]);
}

// Softmax over the features, of which each of `lanes` lanes has two runs.
template <int kVector>
__device__ __forceinline__ void SoftmaxFeatures(int lanes, bool active,
                                                float (&x1)[kVector],
                                                float (&x2)[kVector]) {
  float max = -INFINITY;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    if (active) max = fmaxf(max, fmaxf(x1[j], x2[j]));
  }
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, offset));
  }
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    x1[j] = __expf(x1[j] - max);
    x2[j] = __expf(x2[j] - max);
    if (active) sum += x1[j] + x2[j];
  }
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  }
  const float scale = 1.0f / sum;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    x1[j] *= scale;
    x2[j] *= scale;
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

// ----------------------------------------------------------------------------
// CUDA kernels

// Grid: (runs of tokens, runs of kHeadsPerThread heads). A thread makes its
// sines once and uses them for all its heads.
template <typename T, int kVector, bool kRotate, Softmax kSoftmax>
__global__ void __launch_bounds__(kThreads, kBlocks)
    lrpe_kernel(const __grid_constant__ CudaLrpeParams p,
                const __grid_constant__ int lanes,
                const float2* __restrict__ stats) {
  const int lane = threadIdx.x % lanes;
  const int tokens = static_cast<int>(p.batch * p.length);
  // After the pass that made `stats`, the end of x is what the L2 cache holds.
  const int block =
      kSoftmax == Softmax::kSequence ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  const int token = block * (kThreads / lanes) + threadIdx.x / lanes;
  const int half = static_cast<int>(p.dim / 2);
  const int column = lane * kVector;
  const bool active = token < tokens && column < half;
  const int sequence = active ? token / static_cast<int>(p.length) : 0;
  const int index = active ? token - sequence * static_cast<int>(p.length) : 0;
  const int first_head = blockIdx.y * kHeadsPerThread;
  const int end_head =
      min(static_cast<int>(p.num_heads), first_head + kHeadsPerThread);
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
      if (kSoftmax == Softmax::kNone) {
        ActivateAll(p.activation, x1);
        ActivateAll(p.activation, x2);
      } else if (kSoftmax == Softmax::kFeatures) {
        SoftmaxFeatures(lanes, active, x1, x2);
      } else if (active) {
        const float2* columns =
            stats + (sequence * p.num_heads + head) * p.dim + column;
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

// ----------------------------------------------------------------------------
// Launchers

bool Valid(const CudaLrpeParams& p) {
  return (p.position == LrpeType::kRotate || p.position == LrpeType::kCosine) &&
         p.batch >= 0 && p.length >= 0 && p.batch <= INT32_MAX &&
         p.length <= INT32_MAX &&
         (p.length == 0 || p.batch <= INT32_MAX / p.length) &&
         p.num_heads >= 1 && p.num_heads <= 65535 && p.dim >= 8 &&
         p.dim <= 256 && p.dim % 8 == 0 && p.x != nullptr && p.y != nullptr &&
         p.phase_steps != nullptr && p.offsets != nullptr;
}

template <typename T, int kVector, Softmax kSoftmax>
cudaError_t Launch(const CudaLrpeParams& p, const float2* stats,
                   cudaStream_t stream) {
  const int lanes = LanesPerToken(p.dim, kVector);
  const int tokens_per_block = kThreads / lanes;
  const dim3 grid(
      static_cast<unsigned>((p.batch * p.length + tokens_per_block - 1) /
                            tokens_per_block),
      static_cast<unsigned>((p.num_heads + kHeadsPerThread - 1) /
                            kHeadsPerThread));
  if (p.position == LrpeType::kRotate) {
    lrpe_kernel<T, kVector, true, kSoftmax>
        <<<grid, kThreads, 0, stream>>>(p, lanes, stats);
  } else {
    lrpe_kernel<T, kVector, false, kSoftmax>
        <<<grid, kThreads, 0, stream>>>(p, lanes, stats);
  }
  return cudaGetLastError();
}

// Runs of 16 bytes, or of 8 where a half of a bfloat16 head has an odd number
// of those.
template <Softmax kSoftmax>
cudaError_t LaunchType(const CudaLrpeParams& p, const float2* stats,
                       cudaStream_t stream) {
  if (p.type == ElementType::kFloat32) {
    return Launch<float, 4, kSoftmax>(p, stats, stream);
  }
  return p.dim % 16 == 0 ? Launch<__nv_bfloat16, 8, kSoftmax>(p, stats, stream)
                         : Launch<__nv_bfloat16, 4, kSoftmax>(p, stats, stream);
}

}  // namespace

cudaError_t LaunchLrpe(const CudaLrpeParams& p, cudaStream_t stream) {
  if (!Valid(p)) return cudaErrorInvalidValue;
  if (p.batch * p.length == 0) return cudaSuccess;
  return p.activation == Activation::kSoftmax
             ? LaunchType<Softmax::kFeatures>(p, nullptr, stream)
             : LaunchType<Softmax::kNone>(p, nullptr, stream);
}

int64_t LrpeSequenceWorkspaceBytes(const CudaLrpeParams& p) {
  const int64_t groups = p.batch * p.num_heads;
  return groups * p.dim * (1 + lrpe::StatsChunks(p)) *
             static_cast<int64_t>(sizeof(float2)) +
         groups * static_cast<int64_t>(sizeof(unsigned int));
}

cudaError_t LaunchLrpeSequenceSoftmax(const CudaLrpeParams& p, void* workspace,
                                      cudaStream_t stream) {
  if (!Valid(p) || workspace == nullptr || p.batch > 65535) {
    return cudaErrorInvalidValue;
  }
  if (p.batch * p.length == 0) return cudaSuccess;
  const lrpe::Workspace w = lrpe::SplitWorkspace(p, workspace);
  const dim3 grid(static_cast<unsigned>(lrpe::StatsChunks(p)),
                  static_cast<unsigned>(p.num_heads),
                  static_cast<unsigned>(p.batch));
  if (p.type == ElementType::kBFloat16) {
    lrpe::stats_kernel<__nv_bfloat16>
        <<<grid, lrpe::kStatsThreads, 0, stream>>>(p, w);
  } else {
    lrpe::stats_kernel<float><<<grid, lrpe::kStatsThreads, 0, stream>>>(p, w);
  }
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  return LaunchType<Softmax::kSequence>(p, w.stats, stream);
}

}  // namespace recurve
