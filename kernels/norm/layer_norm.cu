// LayerNorm: one block a row, three passes over the row (mean, variance,
// output).
// Shapes: x and y [T, C], weight and bias [C], float32.
// Floor: 8 T · C + 8 C bytes: x read once from DRAM (later passes hit caches),
// y written once.
#include "kernels/common/device_math.cuh"
#include "kernels/norm/norm_cuda.h"

namespace recurve {
namespace {

constexpr int kThreads = 256;

// Sum over the block, in all threads: a butterfly within each warp, then the
// warps' sums in order.
__device__ float BlockSum(float value) {
  __shared__ float partial[kThreads / 32];
  value = LaneSum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (float part : partial) sum += part;
  return sum;
}

// Grid: rows.
__global__ void __launch_bounds__(kThreads)
    layer_norm_kernel(const __grid_constant__ CudaLayerNormParams p) {
  const float* x = p.x + blockIdx.x * p.x_stride;
  float* y = p.y + blockIdx.x * p.y_stride;
  const auto size = static_cast<float>(p.cols);
  float sum = 0.0f;
  for (int64_t c = threadIdx.x; c < p.cols; c += kThreads) sum += x[c];
  const float mean = BlockSum(sum) / size;
  float squares = 0.0f;
  for (int64_t c = threadIdx.x; c < p.cols; c += kThreads) {
    squares = fmaf(x[c] - mean, x[c] - mean, squares);
  }
  const float scale = 1.0f / sqrtf(BlockSum(squares) / size + p.eps);
  for (int64_t c = threadIdx.x; c < p.cols; c += kThreads) {
    const float weight = p.weight == nullptr ? 1.0f : p.weight[c];
    const float bias = p.bias == nullptr ? 0.0f : p.bias[c];
    y[c] = (x[c] - mean) * scale * weight + bias;
  }
}

}  // namespace

cudaError_t LaunchLayerNorm(const CudaLayerNormParams& p, cudaStream_t stream) {
  if (p.rows < 0 || p.rows > INT32_MAX || p.cols < 1) {
    return cudaErrorInvalidValue;
  }
  if (p.rows == 0) return cudaSuccess;
  layer_norm_kernel<<<static_cast<unsigned>(p.rows), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace recurve
