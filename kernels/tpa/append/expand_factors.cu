// Vectors of all heads from their factors: one block a row, one thread an
// output.
// Shapes: A [T, R, H], B [T, R, D], out [T, H, D], float32.
// Floor: 4 · T · (R · (H + D) + H · D) bytes.
#include "kernels/tpa/append/expand_factors_cuda.h"

namespace recurve {
namespace {

constexpr int kThreads = 256;

// Grid: rows.
__global__ void __launch_bounds__(kThreads)
    expand_kernel(const __grid_constant__ ExpandFactorsParams p) {
  const float* a = p.a + blockIdx.x * p.stride;
  const float* b = p.b + blockIdx.x * p.stride;
  float* out = p.out + blockIdx.x * p.out_stride;
  const float scale = 1.0f / static_cast<float>(p.rank);
  for (int64_t i = threadIdx.x; i < p.num_heads * p.dim; i += kThreads) {
    const int64_t h = i / p.dim;
    const int64_t d = i % p.dim;
    float sum = 0.0f;
    for (int64_t r = 0; r < p.rank; ++r) {
      sum = fmaf(a[r * p.num_heads + h], b[r * p.dim + d], sum);
    }
    out[i] = sum * scale;
  }
}

}  // namespace

cudaError_t LaunchExpandFactors(const ExpandFactorsParams& p,
                                cudaStream_t stream) {
  if (p.rows < 0 || p.rows > INT32_MAX || p.rank < 1 || p.num_heads < 1 ||
      p.dim < 1) {
    return cudaErrorInvalidValue;
  }
  if (p.rows == 0) return cudaSuccess;
  expand_kernel<<<static_cast<unsigned>(p.rows), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace recurve
