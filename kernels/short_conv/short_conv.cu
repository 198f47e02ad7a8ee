// Causal depthwise convolution of 2 to 4 inputs with SiLU: a thread has 16
// bytes of channels and goes through a run of tokens, the last inputs in
// registers, the next ones on their way. A sequence's state is read and written
// by one thread, that of the run in which the sequence begins: such a run goes
// on until the state is no longer needed.
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
constexpr int kConvTokens = 32;    // of a thread
constexpr int kConvFewTokens = 4;  // where sequences are short
constexpr int kConvAhead = 4;      // tokens loaded together
static_assert(kConvFewTokens >= kShortConvMaxWidth,
              "the first tokens of a sequence are in two runs at most");

// Channels of a thread.
template <typename T>
constexpr int kConvVector = 16 / sizeof(T);

__device__ __forceinline__ int LiveSequences(
    const CudaShortConvParams& params) {
  const int all = static_cast<int>(params.of.sequences);
  return params.live == nullptr ? all : min(all, *params.live);
}

// Grid: (runs of channels, runs of tokens).
template <typename T, int kWidth>
__global__ void __launch_bounds__(kConvThreads, 4)
    short_conv_kernel(const __grid_constant__ CudaShortConvParams params,
                      int run) {
  LaunchDependents();
  constexpr int kVector = kConvVector<T>;
  constexpr int kLast = kWidth - 1;
  using Vector = Pack<T, kVector>;
  const ShortConvParams& p = params.of;
  // Through shared memory: a thread's weights are one run, so that its own
  // loads would touch as many lines as there are threads, again and again.
  constexpr int kWeights = kVector * kWidth;
  constexpr int kPitch = kWeights + 4;
  __shared__ __align__(16) float weights[kConvThreads * kPitch];
  const int64_t block = int64_t{blockIdx.x} * kConvThreads * kWeights;
  const int count = static_cast<int>(
      min(int64_t{kConvThreads * kWeights}, p.channels * kWidth - block));
#pragma unroll 8
  for (int i = threadIdx.x; i < count; i += kConvThreads) {
    weights[i / kWeights * kPitch + i % kWeights] = p.weight[block + i];
  }
  __syncthreads();
  const int c = (blockIdx.x * kConvThreads + threadIdx.x) * kVector;
  if (c >= p.channels) return;
  float weight[kVector][kWidth], bias[kVector];
#pragma unroll
  for (int i = 0; i < kWeights; i += 4) {
    const float4 four =
        *reinterpret_cast<const float4*>(weights + threadIdx.x * kPitch + i);
    weight[i / kWidth][i % kWidth] = four.x;
    weight[(i + 1) / kWidth][(i + 1) % kWidth] = four.y;
    weight[(i + 2) / kWidth][(i + 2) % kWidth] = four.z;
    weight[(i + 3) / kWidth][(i + 3) % kWidth] = four.w;
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    bias[i] = p.bias == nullptr ? 0.0f : p.bias[c + i];
  }
  WaitForPrevious();
  const int sequences = LiveSequences(params);
  const int first = blockIdx.y * run;
  const int last =
      sequences == 0 ? 0 : min(p.query_start[sequences], first + run);
  if (first >= last) return;
  // The sequence of the first token: the last that begins at or before it.
  int sequence = 0;
  for (int high = sequences; high - sequence > 1;) {
    const int middle = (sequence + high) / 2;
    (p.query_start[middle] <= first ? sequence : high) = middle;
  }
  int begin = p.query_start[sequence];
  int end = p.query_start[sequence + 1];
  const T* const in = static_cast<const T*>(p.x) + c;
  T* const out = static_cast<T*>(p.y) + c;
  const auto load = [&](int row) {
    return LoadPack<T, kVector>(in + int64_t{row} * p.x_stride);
  };
  float window[kLast][kVector];  // the newest last
  const auto emit = [&](const Vector& pack, int row) {
    float x[kVector], sum[kVector];
    Unpack(pack, x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      sum[i] = bias[i];
#pragma unroll
      for (int j = 0; j < kLast; ++j) {
        sum[i] = fmaf(weight[i][j], window[j][i], sum[i]);
      }
      sum[i] = FastSilu(fmaf(weight[i][kLast], x[i], sum[i]));
#pragma unroll
      for (int j = 0; j + 1 < kLast; ++j) window[j][i] = window[j + 1][i];
      window[kLast - 1][i] = x[i];
    }
    StorePack<T, kVector>(sum, out + int64_t{row} * p.y_stride);
  };

  // The run before has the first tokens of a sequence that begins there.
  int row = begin < first ? max(first, min(end, begin + kLast)) : first;
  while (true) {
    const int64_t slot = p.slots[sequence];
    const int stop = min(end, max(last, begin + kLast));
    if (slot == 0) {
      const float zero[kVector] = {};
      for (; row < stop; ++row) {
        StorePack<T, kVector>(zero, out + int64_t{row} * p.y_stride);
      }
    } else if (row < stop) {
      Vector next[kConvAhead];
      const bool many = stop - row >= kConvAhead;
      if (many) {
#pragma unroll
        for (int i = 0; i < kConvAhead; ++i) next[i] = load(row + i);
      }
      if (begin < row) {
#pragma unroll
        for (int j = 0; j < kLast; ++j)
          Unpack(load(row - kLast + j), window[j]);
      } else {
        T* const state = static_cast<T*>(p.states) + slot * p.slot_stride + c;
        const bool fresh =
            params.fresh != nullptr && params.fresh[sequence] != 0;
        // The old one's inputs are read before the new one's replace them.
        const auto before = [&](int j) {
          Vector pack = {};
          if (!fresh) pack = LoadPack<T, kVector>(state + j * p.channels);
          return pack;
        };
#pragma unroll
        for (int j = 0; j < kLast; ++j) Unpack(before(j), window[j]);
#pragma unroll
        for (int j = 0; j < kLast; ++j) {
          const int from = end - kLast + j;
          *reinterpret_cast<Vector*>(state + j * p.channels) =
              from >= begin ? load(from) : before(j + end - begin);
        }
      }
      if (many) {
        for (; stop - row >= kConvAhead; row += kConvAhead) {
          Vector now[kConvAhead];
#pragma unroll
          for (int i = 0; i < kConvAhead; ++i) now[i] = next[i];
          if (stop - row >= 2 * kConvAhead) {
#pragma unroll
            for (int i = 0; i < kConvAhead; ++i) {
              next[i] = load(row + kConvAhead + i);
            }
          }
#pragma unroll
          for (int i = 0; i < kConvAhead; ++i) emit(now[i], row + i);
        }
      }
      for (; row < stop; ++row) emit(load(row), row);
    }
    if (end >= last) return;
    do {
      ++sequence;
      begin = end;
      end = p.query_start[sequence + 1];
    } while (end == begin);
    row = begin;
  }
}

template <typename T, int kWidth>
cudaError_t LaunchConv(const CudaShortConvParams& params, cudaStream_t stream) {
  const ShortConvParams& p = params.of;
  const int64_t vectors = kConvThreads * kConvVector<T>;
  const bool brief = params.rows < int64_t{kConvTokens} / 2 * p.sequences &&
                     params.rows <= int64_t{65535} * kConvFewTokens;
  const int run = brief ? kConvFewTokens : kConvTokens;
  return LaunchDependent(
      short_conv_kernel<T, kWidth>,
      dim3(static_cast<unsigned>((p.channels + vectors - 1) / vectors),
           static_cast<unsigned>((params.rows + run - 1) / run)),
      kConvThreads, 0, stream, params, run);
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
