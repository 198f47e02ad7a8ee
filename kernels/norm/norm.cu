#include "kernels/norm/norm_cuda.h"

namespace recurve {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// ----------------------------------------------------------------------------
// CUDA kernels

// The sum over the block, in every thread: a butterfly within each warp, then
// the warps' sums in order.
__device__ float BlockSum(float value) {
  __shared__ float partial[kWarps];
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < kWarps; ++warp) sum += partial[warp];
  __syncthreads();  // before the next call overwrites the partial sums
  return sum;
}

__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const __grid_constant__ RmsNormParams p) {
  const int64_t row = blockIdx.x;
  const float* x = p.x + row * p.x_stride;
  float* y = p.y + row * p.y_stride;
  const int64_t width = p.cols / p.groups;
  for (int64_t first = 0; first < p.cols; first += width) {
    float squares = 0.0f;
    for (int64_t i = threadIdx.x; i < width; i += kThreads) {
      squares += x[first + i] * x[first + i];
    }
    const float mean = BlockSum(squares) / static_cast<float>(width);
    const float scale = 1.0f / sqrtf(mean + p.eps);
    for (int64_t i = threadIdx.x; i < width; i += kThreads) {
      const float normed = x[first + i] * scale;
      y[first + i] =
          p.weight == nullptr ? normed : normed * p.weight[first + i];
    }
  }
}

}  // namespace

// ----------------------------------------------------------------------------
// Launchers

cudaError_t LaunchRmsNorm(const RmsNormParams& params, cudaStream_t stream) {
  if (params.rows < 0 || params.rows > INT32_MAX || params.cols < 1 ||
      params.groups < 1 || params.cols % params.groups != 0) {
    return cudaErrorInvalidValue;
  }
  if (params.rows == 0) return cudaSuccess;
  rms_norm_kernel<<<static_cast<unsigned>(params.rows), kThreads, 0, stream>>>(
      params);
  return cudaGetLastError();
}

}  // namespace recurve
