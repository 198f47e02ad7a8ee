// Embedding lookup: one block a row, one thread a column at a time.
// Shapes: tokens [T]; table [vocab, cols] with elements of e bytes; y [T, cols]
// float32.
// Floor: T · cols · (e + 4) bytes: one table row read and one row of y written
// a token.
#include "kernels/common/weight_math.cuh"
#include "kernels/embedding/embedding_cuda.h"

namespace recurve {
namespace {

constexpr int kThreads = 256;

// Grid: rows.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    embed_kernel(const __grid_constant__ CudaEmbedParams p) {
  const int64_t row = blockIdx.x;
  const int32_t source = p.sources == nullptr ? -1 : p.sources[row];
  const int64_t token =
      source < 0 ? p.tokens[row] : p.fed[source * p.fed_stride];
  const bool known = token >= 0 && token < p.vocab;
  const T* from = static_cast<const T*>(p.table) + (known ? token : 0) * p.cols;
  float* y = p.y + row * p.y_stride;
  for (int64_t c = threadIdx.x; c < p.cols; c += kThreads) {
    y[c] = known ? __fmul_rn(p.scale, WeightToFloat(from[c])) : 0.0f;
  }
}

}  // namespace

// Not a dependent launch: in a step it separates kernels that write states,
// slots and the step's numbers from those that read them early
// (LaunchLinearScan).
cudaError_t LaunchEmbed(const CudaEmbedParams& p, cudaStream_t stream) {
  if (p.rows < 0 || p.rows > INT32_MAX || p.cols < 1 || p.vocab < 1 ||
      (p.sources != nullptr && p.fed == nullptr)) {
    return cudaErrorInvalidValue;
  }
  if (p.rows == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(p.rows);
  switch (p.type) {
    case WeightType::kFloat32:
      embed_kernel<float><<<grid, kThreads, 0, stream>>>(p);
      break;
    case WeightType::kBFloat16:
      embed_kernel<__nv_bfloat16><<<grid, kThreads, 0, stream>>>(p);
      break;
    case WeightType::kFloat16:
      embed_kernel<__half><<<grid, kThreads, 0, stream>>>(p);
      break;
  }
  return cudaGetLastError();
}

}  // namespace recurve
