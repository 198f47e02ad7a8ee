// Causal depthwise convolution of 2 to 4 inputs with SiLU: a thread has 16
// bytes of channels and goes through 32 tokens, the last inputs in registers. A
// second kernel makes the states, after all have read them.
// Shapes: x, y [T, C] of e bytes; states [slots, W − 1, C] of e bytes; weight
// [C, W] float32.
// Floor: 2 · e · T · C bytes.
#include <cuda_bf16.h>

#include "kernels/common/alignment.h"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/short_conv/short_conv_cuda.h"

namespace recurve {
namespace {

constexpr int kConvThreads = 128;
constexpr int kConvTokens = 32;  // of a thread

// Channels of a thread.
template <typename T>
constexpr int kConvVector = 16 / sizeof(T);

// x_t of a sequence's channels c and on, t < 0 and >= −(W − 1) from its state.
template <typename T, int kWidth>
__device__ __forceinline__ void LoadInput(const CudaShortConvParams& params,
                                          int sequence, int begin, int t, int c,
                                          float (&x)[16 / sizeof(T)]) {
  constexpr int kVector = kConvVector<T>;
  const ShortConvParams& p = params.of;
  if (t >= 0) {
    Unpack(LoadPack<T, kVector>(static_cast<const T*>(p.x) +
                                (int64_t{begin} + t) * p.x_stride + c),
           x);
    return;
  }
  if (params.fresh != nullptr && params.fresh[sequence] != 0) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) x[i] = 0.0f;
    return;
  }
  Unpack(LoadPack<T, kVector>(static_cast<const T*>(p.states) +
                              p.slots[sequence] * p.slot_stride +
                              (kWidth - 1 + t) * p.channels + c),
         x);
}

__device__ __forceinline__ int LiveSequences(
    const CudaShortConvParams& params) {
  const int all = static_cast<int>(params.of.sequences);
  return params.live == nullptr ? all : min(all, *params.live);
}

// Grid: (runs of channels, runs of tokens).
template <typename T, int kWidth>
__global__ void __launch_bounds__(kConvThreads)
    short_conv_kernel(const __grid_constant__ CudaShortConvParams params) {
  LaunchDependents();
  constexpr int kVector = kConvVector<T>;
  const ShortConvParams& p = params.of;
  const int c = (blockIdx.x * kConvThreads + threadIdx.x) * kVector;
  if (c >= p.channels) return;
  float weight[kVector][kWidth], bias[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    bias[i] = p.bias == nullptr ? 0.0f : p.bias[c + i];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      weight[i][j] = p.weight[int64_t{c + i} * kWidth + j];
    }
  }
  WaitForPrevious();
  const int sequences = LiveSequences(params);
  const int first = blockIdx.y * kConvTokens;
  const int last =
      sequences == 0 ? 0 : min(p.query_start[sequences], first + kConvTokens);
  if (first >= last) return;
  // The sequence of the first token: the last that begins at or before it.
  int sequence = 0;
  for (int high = sequences; high - sequence > 1;) {
    const int middle = (sequence + high) / 2;
    (p.query_start[middle] <= first ? sequence : high) = middle;
  }
  int begin = p.query_start[sequence];
  int end = p.query_start[sequence + 1];
  float window[kWidth][kVector];  // the newest last
  const auto fill = [&](int t) {
#pragma unroll
    for (int j = 0; j + 1 < kWidth; ++j) {
      LoadInput<T, kWidth>(params, sequence, begin, t - kWidth + 1 + j, c,
                           window[j + 1]);
    }
  };
  bool sink = p.slots[sequence] == 0;
  if (!sink) fill(first - begin);
  for (int row = first; row < last; ++row) {
    if (row >= end) {
      while (row >= end) {
        ++sequence;
        begin = end;
        end = p.query_start[sequence + 1];
      }
      sink = p.slots[sequence] == 0;
      if (!sink) fill(0);
    }
    float sum[kVector];
    if (sink) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum[i] = 0.0f;
    } else {
#pragma unroll
      for (int j = 0; j + 1 < kWidth; ++j) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) window[j][i] = window[j + 1][i];
      }
      LoadInput<T, kWidth>(params, sequence, begin, row - begin, c,
                           window[kWidth - 1]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        sum[i] = bias[i];
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          sum[i] = fmaf(weight[i][j], window[j][i], sum[i]);
        }
        sum[i] *= DeviceSigmoid(sum[i]);
      }
    }
    StorePack<T, kVector>(sum,
                          static_cast<T*>(p.y) + int64_t{row} * p.y_stride + c);
  }
}

// Grid: (runs of channels, sequences).
template <typename T, int kWidth>
__global__ void __launch_bounds__(kConvThreads) short_conv_state_kernel(
    const __grid_constant__ CudaShortConvParams params) {
  LaunchDependents();
  constexpr int kVector = kConvVector<T>;
  const ShortConvParams& p = params.of;
  const int c = (blockIdx.x * kConvThreads + threadIdx.x) * kVector;
  const int sequence = blockIdx.y;
  WaitForPrevious();
  if (c >= p.channels || sequence >= LiveSequences(params)) return;
  const int64_t slot = p.slots[sequence];
  const int begin = p.query_start[sequence];
  const int count = p.query_start[sequence + 1] - begin;
  if (slot == 0 || count <= 0) return;
  float last[kWidth - 1][kVector];
#pragma unroll
  for (int j = 0; j + 1 < kWidth; ++j) {
    LoadInput<T, kWidth>(params, sequence, begin, count - kWidth + 1 + j, c,
                         last[j]);
  }
#pragma unroll
  for (int j = 0; j + 1 < kWidth; ++j) {
    StorePack<T, kVector>(
        last[j],
        static_cast<T*>(p.states) + slot * p.slot_stride + j * p.channels + c);
  }
}

template <typename T, int kWidth>
cudaError_t LaunchConv(const CudaShortConvParams& params, cudaStream_t stream) {
  const ShortConvParams& p = params.of;
  const int64_t run = kConvThreads * kConvVector<T>;
  const unsigned runs = static_cast<unsigned>((p.channels + run - 1) / run);
  const cudaError_t error = LaunchDependent(
      short_conv_kernel<T, kWidth>,
      dim3(runs, static_cast<unsigned>((params.rows + kConvTokens - 1) /
                                       kConvTokens)),
      kConvThreads, 0, stream, params);
  if (error != cudaSuccess) return error;
  return LaunchDependent(short_conv_state_kernel<T, kWidth>,
                         dim3(runs, static_cast<unsigned>(p.sequences)),
                         kConvThreads, 0, stream, params);
}

template <typename T>
cudaError_t LaunchWidth(const CudaShortConvParams& params,
                        cudaStream_t stream) {
  switch (params.of.width) {
    case 2:
      return LaunchConv<T, 2>(params, stream);
    case 3:
      return LaunchConv<T, 3>(params, stream);
    default:
      return LaunchConv<T, 4>(params, stream);
  }
}

}  // namespace

cudaError_t LaunchShortConv(const CudaShortConvParams& params,
                            cudaStream_t stream) {
  const ShortConvParams& p = params.of;
  const int64_t vector = p.type == ElementType::kFloat32 ? 4 : 8;
  if (p.channels < 1 || p.channels > (int64_t{1} << 24) ||
      p.width < kShortConvMinWidth || p.width > kShortConvMaxWidth ||
      p.sequences < 0 || p.sequences > 65535 || params.rows < 0 ||
      params.rows > int64_t{65535} * kConvTokens || p.channels % vector != 0 ||
      p.x_stride % vector != 0 || p.y_stride % vector != 0 ||
      p.slot_stride % vector != 0) {
    return cudaErrorInvalidValue;
  }
  if (p.sequences == 0 || params.rows == 0) return cudaSuccess;
  if (!IsThere(p.x) || !IsThere(p.y) || !IsThere(p.states) ||
      p.weight == nullptr || p.query_start == nullptr || p.slots == nullptr) {
    return cudaErrorInvalidValue;
  }
  return p.type == ElementType::kFloat32
             ? LaunchWidth<float>(params, stream)
             : LaunchWidth<__nv_bfloat16>(params, stream);
}

}  // namespace recurve
