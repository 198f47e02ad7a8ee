// Append for TPA: one block a new token and rank rounds the factors of keys and
// values into their page; other blocks of the same launch form queries
// (tpa_query.cuh).
// Shapes: A_k, A_v [T, R, H], B_k [T, R, D], B_v [T, R, E] float32; pages of 64
// tokens, 16-bit; queries as in tpa_queries.cu.
// Floor: T · R · (2 H + D + E) · (4 + 2) bytes, and for queries
// 4 · T · (Rq · (H + D) + H · D) more.
#include <algorithm>

#include "kernels/common/alignment.h"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/tpa/append/tpa_append.cuh"
#include "kernels/tpa/tpa_cuda.h"
#include "kernels/tpa/tpa_query.cuh"

namespace recurve {
namespace {

constexpr int kThreads = kTpaQueryThreads;
// Blocks are short and small, and decode frees one multiprocessor after the
// other: the first one would get many of them, and finish last. Unused shared
// memory limits it to four, as long as that suffices for all.
constexpr int kSpreadBytes = 47 << 10;
constexpr int64_t kSpreadBlocks = 512;

// ----------------------------------------------------------------------------
// CUDA kernels

// Elements of B, of a token and rank, that a thread has at most.
constexpr int kOwn = 256 / kThreads;
static_assert(kThreads >= 128, "a thread has at most one head");

// Writes the key and value factors of a token and rank, and zeros the padding.
// All factors are requested before their address is known, which takes three
// dependent reads.
template <typename T>
__device__ void AppendFactors(const TpaCudaAppendParams& p,
                              const TpaPageLayout& layout, int64_t row, int r) {
  const int64_t position = p.positions[row];
  const int64_t sequence = p.row_sequence[row];
  const int heads = static_cast<int>(p.shape.num_heads);
  const int dim = static_cast<int>(p.shape.head_dim);
  const int value_dim = static_cast<int>(p.shape.value_dim);
  const int i = threadIdx.x;
  const TpaCudaFactors& f = p.factors;
  const float* b_k = f.b_k + row * f.stride + r * dim;
  const float* b_v = f.b_v + row * f.stride + r * value_dim;
  const int64_t head = row * f.stride + r * heads + i;
  float k = i < heads ? f.a_k[head] : 0.0f;
  float v = i < heads ? f.a_v[head] : 0.0f;
  float own_k[kOwn], own_v[kOwn];
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const int d = i + j * kThreads;
    own_k[j] = d < dim ? TpaEncodeKey(f, dim, row, b_k, d) : 0.0f;
    own_v[j] = d < value_dim ? b_v[d] : 0.0f;
  }
  if (position < 0 || position >= kTpaPageTokens * p.cache.page_table_stride) {
    return;
  }
  const int64_t page = p.cache.page_table[sequence * p.cache.page_table_stride +
                                          position / kTpaPageTokens];
  T* to = static_cast<T*>(p.cache.pages) + page * p.cache.page_stride;
  const int m = static_cast<int>(position % kTpaPageTokens);
  if (i < layout.a_width) {
    // Padding heads stay zero.
    if (i < heads) {
      k = TpaActivateFactor(f.activation, k);
      v = TpaActivateFactor(f.activation, v);
    }
    to[layout.AK(m, r, i)] = Half<T>::From(k);
    to[layout.AV(m, r, i)] = Half<T>::From(v);
  }
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const int d = i + j * kThreads;
    if (d < layout.b_k_width) to[layout.BK(m, r, d)] = Half<T>::From(own_k[j]);
    if (d < layout.b_v_width) to[layout.BV(m, r, d)] = Half<T>::From(own_v[j]);
  }
}

// One block a token and rank; then, for queries, one a token and 2^shift groups
// of 8 heads, of D up to 64 kPairs.
template <typename T, int kPairs>
__global__ void __launch_bounds__(kThreads)
    tpa_append_kernel(const __grid_constant__ TpaCudaAppendParams p,
                      const __grid_constant__ TpaPageLayout layout,
                      const __grid_constant__ TpaQueryArgs queries) {
  extern __shared__ __align__(16) float staging[];
  LaunchDependents();
  WaitForPrevious();
  const auto kv_rank = static_cast<unsigned>(p.shape.kv_rank);
  const auto rows = static_cast<unsigned>(p.rows);
  const unsigned block = blockIdx.x;
  if (block < rows * kv_rank) {
    AppendFactors<T>(p, layout, block % rows, static_cast<int>(block / rows));
  } else {
    const unsigned of_queries = block - rows * kv_rank;
    const auto tokens = static_cast<unsigned>(p.query_rows);
    TpaQueryFormer<T, kPairs>(queries, staging)
        .Form(of_queries % tokens, static_cast<int>(of_queries / tokens));
  }
}

template <typename T>
cudaError_t Launch(const TpaCudaAppendParams& params,
                   const TpaPageLayout& layout, const TpaQueryArgs& queries,
                   cudaStream_t stream) {
  const bool form = params.query_rows > 0;
  const int64_t blocks =
      int64_t{params.rows} * params.shape.kv_rank +
      (form ? int64_t{params.query_rows} * queries.TokenBlocks() : 0);
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  const auto kernel = params.shape.head_dim <= 64    ? tpa_append_kernel<T, 1>
                      : params.shape.head_dim <= 128 ? tpa_append_kernel<T, 2>
                                                     : tpa_append_kernel<T, 4>;
  int bytes = form ? queries.staging : 0;
  if (blocks <= kSpreadBlocks) bytes = std::max(bytes, kSpreadBytes);
  return LaunchDependent(kernel, dim3(static_cast<unsigned>(blocks)), kThreads,
                         bytes, stream, params, layout, queries);
}

// Whether all inputs and outputs of the rows are set.
bool Complete(const TpaCudaAppendParams& p) {
  const TpaCudaFactors& f = p.factors;
  return IsThere(p.cache.pages) && p.cache.page_table != nullptr &&
         p.row_sequence != nullptr && p.positions != nullptr &&
         f.a_k != nullptr && f.b_k != nullptr && f.a_v != nullptr &&
         f.b_v != nullptr &&
         (p.query_rows == 0 ||
          (f.b_q != nullptr && (p.shape.q_rank == 0 || f.a_q != nullptr))) &&
         (f.position == LrpeType::kNone ||
          (f.cos != nullptr && f.sin != nullptr));
}

bool Valid(const TpaCudaAppendParams& p, const TpaPageLayout& layout) {
  return TpaDecodeSupports(p.shape) && p.rows >= 0 && p.query_rows >= 0 &&
         (p.query_rows == 0 || (p.queries != nullptr && p.first_query >= 0 &&
                                p.query_rows <= p.rows - p.first_query)) &&
         p.cache.page_stride % 8 == 0 &&
         p.cache.page_stride >= layout.page_elements &&
         p.factors.position != LrpeType::kCosine &&
         p.factors.activation != Activation::kSoftmax &&
         (p.rows == 0 || Complete(p));
}

}  // namespace

// ----------------------------------------------------------------------------
// Launchers

cudaError_t LaunchTpaAppend(const TpaCudaAppendParams& params,
                            cudaStream_t stream) {
  const TpaPageLayout layout(params.shape, TpaPageOrder::kOctets);
  if (!Valid(params, layout)) return cudaErrorInvalidValue;
  TpaCudaQueryParams of = {params.shape,
                           params.cache.element,
                           params.query_rows,
                           params.factors.a_q,
                           params.factors.b_q,
                           params.factors.query_stride,
                           params.factors.position,
                           params.factors.cos,
                           params.factors.sin,
                           params.queries};
  if (params.query_rows > 0) {
    const int64_t first = params.first_query;
    if (params.shape.q_rank > 0) of.a_q += first * of.stride;
    of.b_q += first * of.stride;
    if (of.position != LrpeType::kNone) {
      of.cos += first * (params.shape.head_dim / 2);
      of.sin += first * (params.shape.head_dim / 2);
    }
  }
  TpaQueryArgs queries;
  if (!MakeTpaQueryArgs(of, &queries)) return cudaErrorInvalidValue;
  if (params.rows == 0) return cudaSuccess;
  return params.cache.element == TpaElement::kBFloat16
             ? Launch<__nv_bfloat16>(params, layout, queries, stream)
             : Launch<__half>(params, layout, queries, stream);
}

}  // namespace recurve
