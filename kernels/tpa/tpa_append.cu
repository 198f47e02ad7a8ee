#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/tpa/tpa_cuda.h"
#include "kernels/tpa/tpa_query.cuh"

namespace recurve {
namespace {

constexpr int kThreads = kTpaQueryThreads;

// ----------------------------------------------------------------------------
// CUDA kernels

// DeviceActivate, with the division of the CPU's where it has a faster one:
// what is cached is read at every later step.
__device__ float ActivateFactor(Activation activation, float x) {
  if (activation == Activation::kSilu) return x / (1.0f + expf(-x));
  if (activation == Activation::kSigmoid) return 1.0f / (1.0f + expf(-x));
  return DeviceActivate(activation, x);
}

// Element `d` of an encoded B_k row.
__device__ float Encode(const TpaCudaAppendParams& p, int64_t row,
                        const float* x, int d) {
  if (p.position == LrpeType::kNone) return x[d];
  const int half = static_cast<int>(p.shape.head_dim) / 2;
  const int k = d < half ? d : d - half;
  const float c = p.cos[row * half + k];
  const float s = p.sin[row * half + k];
  return d < half ? __fsub_rn(__fmul_rn(x[k], c), __fmul_rn(x[half + k], s))
                  : __fadd_rn(__fmul_rn(x[k], s), __fmul_rn(x[half + k], c));
}

// One block a token and rank, and one for each group of 8 heads of queries that
// are wanted. Padding of rows becomes zero.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    tpa_append_kernel(const __grid_constant__ TpaCudaAppendParams p,
                      const __grid_constant__ TpaPageLayout layout,
                      const __grid_constant__ TpaQueryArgs queries) {
  extern __shared__ __align__(16) float staging[];
  LaunchDependents();
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  const int r = blockIdx.y;
  if (r >= p.shape.kv_rank) {
    TpaQueryFormer<T>(queries, staging)
        .Form(row, r - static_cast<int>(p.shape.kv_rank));
    return;
  }
  const int64_t position = p.positions[row];
  if (position < 0 || position >= kTpaPageTokens * p.cache.page_table_stride) {
    return;
  }
  const int64_t page =
      p.cache.page_table[p.row_sequence[row] * p.cache.page_table_stride +
                         position / kTpaPageTokens];
  T* to = static_cast<T*>(p.cache.pages) + page * p.cache.page_stride;
  const int m = static_cast<int>(position % kTpaPageTokens);
  const int heads = static_cast<int>(p.shape.num_heads);
  const int dim = static_cast<int>(p.shape.head_dim);
  const int value_dim = static_cast<int>(p.shape.value_dim);
  const float* a_k = p.a_k + row * p.stride + r * heads;
  const float* a_v = p.a_v + row * p.stride + r * heads;
  const float* b_k = p.b_k + row * p.stride + r * dim;
  const float* b_v = p.b_v + row * p.stride + r * value_dim;
  for (int h = threadIdx.x; h < layout.a_width; h += kThreads) {
    const bool exists = h < heads;
    to[layout.AK(m, r, h)] =
        Half<T>::From(exists ? ActivateFactor(p.activation, a_k[h]) : 0.0f);
    to[layout.AV(m, r, h)] =
        Half<T>::From(exists ? ActivateFactor(p.activation, a_v[h]) : 0.0f);
  }
  for (int d = threadIdx.x; d < layout.b_k_width; d += kThreads) {
    to[layout.BK(m, r, d)] =
        Half<T>::From(d < dim ? Encode(p, row, b_k, d) : 0.0f);
  }
  for (int e = threadIdx.x; e < layout.b_v_width; e += kThreads) {
    to[layout.BV(m, r, e)] = Half<T>::From(e < value_dim ? b_v[e] : 0.0f);
  }
}

bool Valid(const TpaCudaAppendParams& p, const TpaPageLayout& layout) {
  return TpaDecodeSupports(p.shape) && p.rows >= 0 &&
         p.cache.page_stride % 8 == 0 &&
         p.cache.page_stride >= layout.page_elements &&
         p.position != LrpeType::kCosine &&
         p.activation != Activation::kSoftmax;
}

}  // namespace

// ----------------------------------------------------------------------------
// Launchers

cudaError_t LaunchTpaAppend(const TpaCudaAppendParams& params,
                            cudaStream_t stream) {
  const TpaPageLayout layout(params.shape, TpaPageOrder::kOctets);
  TpaQueryArgs queries;
  if (!Valid(params, layout) ||
      !MakeTpaQueryArgs(
          {params.shape, params.cache.element, params.rows, params.a_q,
           params.b_q, params.query_stride, params.position, params.cos,
           params.sin, params.queries},
          &queries)) {
    return cudaErrorInvalidValue;
  }
  if (params.rows == 0) return cudaSuccess;
  const bool form = params.queries != nullptr;
  const dim3 grid(static_cast<unsigned>(params.rows),
                  static_cast<unsigned>(params.shape.kv_rank +
                                        (form ? queries.octets : 0)));
  const auto kernel = params.cache.element == TpaElement::kBFloat16
                          ? tpa_append_kernel<__nv_bfloat16>
                          : tpa_append_kernel<__half>;
  return LaunchDependent(kernel, grid, kThreads, form ? queries.staging : 0,
                         stream, params, layout, queries);
}

}  // namespace recurve
