// RMSNorm, with an optional gate before or after it: 16 or 32 threads a group
// of up to 512 columns, one block a wider group. Each thread keeps its first
// two 16-byte runs in registers.
// Shapes: x, gate and y [T, C] in G groups of C / G columns, elements of e
// bytes (y: e'); weight [C] float32.
// Floor: T · C · (e + e') + 4 C bytes, with a gate T · C · e more.
#include <cuda_bf16.h>

#include "kernels/common/alignment.h"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/norm/norm_cuda.h"
#include "kernels/norm/norm_order.h"

namespace recurve {
namespace {

enum class Gate { kNone, kBefore, kAfter };

constexpr int kBlock = 256;

// A run of kVector neighbouring elements: one access where the layout allows
// it, else one an element. Both give a thread the same elements, so the order
// of a sum does not depend on alignment.
template <typename T, int kVector>
__device__ __forceinline__ void LoadRun(const T* x, int left, bool whole,
                                        float (&out)[kVector]) {
  if (whole && left >= kVector) {
    Unpack(LoadPack<T, kVector>(x), out);
    return;
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j) out[j] = j < left ? ToFloat(x[j]) : 0.0f;
}

template <typename T, int kVector>
__device__ __forceinline__ void StoreRun(const float (&x)[kVector], int left,
                                         bool whole, T* y) {
  if (whole && left >= kVector) {
    if constexpr (sizeof(T) == 2 && kVector == 4) {
      *reinterpret_cast<uint2*>(y) =
          make_uint2(Half<T>::Pack(x[0], x[1]), Half<T>::Pack(x[2], x[3]));
    } else {
      StorePack<T, kVector>(x, y);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    if (j >= left) continue;
    if constexpr (sizeof(T) == 2) {
      y[j] = Half<T>::From(x[j]);
    } else {
      y[j] = x[j];
    }
  }
}

// Sum over kThreads neighbouring threads (a power of two up to 32, or the
// block), in all of them: a butterfly within each warp, then the warps' sums in
// order.
template <int kThreads>
__device__ __forceinline__ float ThreadSum(float value) {
  if constexpr (kThreads <= 32) {
    return LaneSum<kThreads>(value);
  } else {
    __shared__ float partial[kBlock / 32];
    value = LaneSum(value);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0.0f;
    for (int warp = 0; warp < kBlock / 32; ++warp) sum += partial[warp];
    return sum;
  }
}

// x · act(g). Only the usual activations are inlined: all of them, for each
// element, would be more code than a cold start of a small kernel can fetch.
template <int kVector>
__device__ __forceinline__ void ApplyGate(Activation activation,
                                          float (&g)[kVector],
                                          float (&x)[kVector]) {
  if (activation == Activation::kSigmoid || activation == Activation::kSilu) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float sigmoid = DeviceSigmoid(g[j]);
      x[j] *= activation == Activation::kSilu ? g[j] * sigmoid : sigmoid;
    }
    return;
  }
#pragma unroll 1
  for (int j = 0; j < kVector; ++j) {
    // Loops over registers: each rotates through the first.
    const float y = x[0] * DeviceActivate(activation, g[0]);
#pragma unroll
    for (int i = 0; i + 1 < kVector; ++i) {
      x[i] = x[i + 1];
      g[i] = g[i + 1];
    }
    x[kVector - 1] = y;
  }
}

// ----------------------------------------------------------------------------
// CUDA kernels

// kThreads threads normalise one group of one row. Threads without a row take
// part in the sums of their warp.
template <typename T, typename TOut, Gate kGate, int kThreads>
__global__ void __launch_bounds__(kBlock)
    norm_kernel(const __grid_constant__ CudaGatedNormParams params,
                bool whole) {
  LaunchDependents();
  constexpr int kVector = 16 / sizeof(T);
  constexpr int kStep = kThreads * kVector;
  const CudaRmsNormParams& p = params.norm;
  const unsigned groups = static_cast<unsigned>(p.groups);
  const unsigned item =
      blockIdx.x * (kBlock / kThreads) + threadIdx.x / kThreads;
  const int64_t row = item / groups;
  const int rows = static_cast<int>(p.rows);
  const int width = static_cast<int>(p.cols / groups);
  const int64_t first = int64_t{item % groups} * width;
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride + first;
  const T* gate =
      static_cast<const T*>(params.gate) + row * params.gate_stride + first;
  TOut* y = static_cast<TOut*>(p.y) + row * p.y_stride + first;
  const int own = threadIdx.x % kThreads * kVector;

  // A thread's first runs are loaded together and kept; weights before the
  // wait, since no kernel writes them.
  constexpr int kKept = 2;
  float kept[kKept][kVector], weights[kKept][kVector];
  const auto load_weights = [&](int i, float(&out)[kVector]) {
#pragma unroll
    for (int j = 0; j < kVector; j += 4) {
      float four[4];
      LoadRun(p.weight + first + i + j, width - i - j, whole, four);
#pragma unroll
      for (int k = 0; k < 4; ++k) out[j + k] = four[k];
    }
  };
  if (p.weight != nullptr) {
#pragma unroll
    for (int k = 0; k < kKept; ++k) load_weights(own + k * kStep, weights[k]);
  }
  WaitForPrevious();
  const bool live =
      row < (p.live_rows == nullptr ? rows : min(rows, *p.live_rows));
  const int begin = live ? own : width;

  // x, gated if the gate comes first.
  const auto load = [&](int i, float(&in)[kVector]) {
    LoadRun(x + i, width - i, whole, in);
    if constexpr (kGate == Gate::kBefore) {
      float g[kVector];
      LoadRun(gate + i, width - i, whole, g);
      ApplyGate(params.activation, g, in);
    }
  };
  // Normalises one run and writes it.
  const auto finish = [&](int i, float scale, float(&out)[kVector],
                          const float(&weight)[kVector]) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      out[j] =
          p.weight != nullptr ? out[j] * scale * weight[j] : out[j] * scale;
    }
    if constexpr (kGate == Gate::kAfter) {
      float g[kVector];
      LoadRun(gate + i, width - i, whole, g);
      ApplyGate(params.activation, g, out);
    }
    StoreRun(out, width - i, whole, y + i);
  };

  float squares = 0.0f;
  const auto add = [&](const float(&in)[kVector]) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) squares = fmaf(in[j], in[j], squares);
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k) load(begin + k * kStep, kept[k]);
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    if (begin + k * kStep < width) add(kept[k]);
  }
#pragma unroll 2
  for (int i = begin + kKept * kStep; i < width; i += kStep) {
    float in[kVector];
    load(i, in);
    add(in);
  }
  const float mean = ThreadSum<kThreads>(squares) / static_cast<float>(width);
  const float scale = 1.0f / sqrtf(mean + p.eps);

#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = begin + k * kStep;
    if (i < width) finish(i, scale, kept[k], weights[k]);
  }
#pragma unroll 2
  for (int i = begin + kKept * kStep; i < width; i += kStep) {
    float out[kVector], weight[kVector];
    load(i, out);
    if (p.weight != nullptr) load_weights(i, weight);
    finish(i, scale, out, weight);
  }
}

// ----------------------------------------------------------------------------
// Launchers

bool Aligned(const void* data, int64_t stride, int64_t vector) {
  return IsAligned(data) && stride % vector == 0;
}

template <typename T, Gate kGate, typename TOut = T>
cudaError_t Launch(const CudaGatedNormParams& params, cudaStream_t stream) {
  constexpr int kVector = 16 / sizeof(T);
  const CudaRmsNormParams& p = params.norm;
  const int64_t width = p.cols / p.groups;
  const bool whole = width % kVector == 0 &&
                     Aligned(p.x, p.x_stride, kVector) &&
                     Aligned(p.y, p.y_stride, kVector) &&
                     (kGate == Gate::kNone ||
                      Aligned(params.gate, params.gate_stride, kVector));
  const bool fits = p.weight == nullptr || Aligned(p.weight, width, 4);
  const auto launch = [&](auto kernel, int threads) {
    const int64_t items = p.rows * p.groups;
    const int64_t items_a_block = kBlock / threads;
    return LaunchDependent(kernel,
                           dim3(static_cast<unsigned>(
                               (items + items_a_block - 1) / items_a_block)),
                           kBlock, 0, stream, params, whole && fits);
  };
  if (width <= 16 * kVector) {
    return launch(norm_kernel<T, TOut, kGate, 16>, 16);
  }
  if (width <= kNormWarpCols)
    return launch(norm_kernel<T, TOut, kGate, 32>, 32);
  return launch(norm_kernel<T, TOut, kGate, kBlock>, kBlock);
}

bool Valid(const CudaRmsNormParams& p) {
  return p.rows >= 0 && p.cols >= 1 && p.groups >= 1 &&
         p.cols % p.groups == 0 && p.cols <= INT32_MAX &&
         p.rows <= INT32_MAX / p.groups;
}

template <typename T, typename TOut = T>
cudaError_t LaunchGated(const CudaGatedNormParams& params,
                        cudaStream_t stream) {
  return params.gate_after_norm
             ? Launch<T, Gate::kAfter, TOut>(params, stream)
             : Launch<T, Gate::kBefore, TOut>(params, stream);
}

bool Valid(const CudaGatedNormParams& p) {
  return Valid(p.norm) && p.gate != nullptr &&
         p.activation != Activation::kSoftmax;
}

}  // namespace

cudaError_t LaunchRmsNorm(const CudaRmsNormParams& params,
                          cudaStream_t stream) {
  if (!Valid(params)) return cudaErrorInvalidValue;
  if (params.rows == 0) return cudaSuccess;
  CudaGatedNormParams gated = {};
  gated.norm = params;
  return params.type == ElementType::kBFloat16
             ? Launch<__nv_bfloat16, Gate::kNone>(gated, stream)
             : Launch<float, Gate::kNone>(gated, stream);
}

cudaError_t LaunchRoundedRmsNorm(const CudaRmsNormParams& params,
                                 WeightType y_type, cudaStream_t stream) {
  if (!Valid(params) || params.type != ElementType::kFloat32 ||
      y_type == WeightType::kFloat32) {
    return cudaErrorInvalidValue;
  }
  if (params.rows == 0) return cudaSuccess;
  CudaGatedNormParams gated = {};
  gated.norm = params;
  return y_type == WeightType::kBFloat16
             ? Launch<float, Gate::kNone, __nv_bfloat16>(gated, stream)
             : Launch<float, Gate::kNone, __half>(gated, stream);
}

cudaError_t LaunchGatedNorm(const CudaGatedNormParams& params,
                            cudaStream_t stream) {
  if (!Valid(params)) return cudaErrorInvalidValue;
  if (params.norm.rows == 0) return cudaSuccess;
  return params.norm.type == ElementType::kBFloat16
             ? LaunchGated<__nv_bfloat16>(params, stream)
             : LaunchGated<float>(params, stream);
}

cudaError_t LaunchRoundedGatedNorm(const CudaGatedNormParams& params,
                                   WeightType y_type, cudaStream_t stream) {
  if (!Valid(params) || params.norm.type != ElementType::kFloat32 ||
      y_type == WeightType::kFloat32) {
    return cudaErrorInvalidValue;
  }
  if (params.norm.rows == 0) return cudaSuccess;
  return y_type == WeightType::kBFloat16
             ? LaunchGated<float, __nv_bfloat16>(params, stream)
             : LaunchGated<float, __half>(params, stream);
}

}  // namespace recurve
