// Append for softmax attention: one warp a head of a new token's keys or values
// rounds it into its page, keys after norm and rotation; other warps of the
// same launch form heads of queries for decode. A lane has eight features.
// Shapes: k [T, G, D], v [T, G, E], q [T, H, D] float32; pages of 64 tokens.
// Floor: T · G · (D + E) · (4 + 2) bytes, and for queries
// T · H · D · (4 + 4) more.
#include <cstdint>

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_encode.cuh"
#include "kernels/common/alignment.h"
#include "kernels/common/dependent_launch.cuh"

namespace recurve {
namespace {

constexpr int kThreads = 128;
constexpr float kLog2E = 1.4426950408889634f;

struct Args {
  AttentionCudaAppendParams p;
  AttentionPageLayout layout;
  float query_scale;  // `scale` and log2(e)
  bool aligned;       // heads of k and v begin at 16 bytes
  bool query_aligned;
};

// ----------------------------------------------------------------------------
// CUDA kernels

// Head `unit` of a row's G keys, then G values.
template <typename T>
__device__ void AppendHead(const Args& args, int64_t row, int unit) {
  const AttentionCudaAppendParams& p = args.p;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int heads = static_cast<int>(p.shape.num_kv_heads);
  const bool is_key = unit < heads;
  const int head = is_key ? unit : unit - heads;
  const int dim =
      static_cast<int>(is_key ? p.shape.head_dim : p.shape.value_dim);
  // Requested before the address is known, which takes dependent reads.
  const int64_t position = LoadNow(p.positions + row);
  const int64_t sequence = LoadNow(p.row_sequence + row);
  float x[8];
  AttentionLoadOctet((is_key ? p.k : p.v) + row * p.stride + head * dim, dim,
                     args.aligned, x);
  if (is_key) AttentionEncode(p.k_norm, p.position, row, dim, x);
  if (position < 0 ||
      position >= kAttentionPageTokens * p.cache.page_table_stride ||
      8 * lane >= dim) {
    return;
  }
  const int64_t page = p.cache.page_table[sequence * p.cache.page_table_stride +
                                          position / kAttentionPageTokens];
  const int64_t m = position % kAttentionPageTokens;
  AttentionStoreOctet(static_cast<T*>(p.cache.pages) +
                          page * p.cache.page_stride +
                          (is_key ? args.layout.K(m, head, 8 * lane)
                                  : args.layout.V(m, head, 8 * lane)),
                      x);
}

// Query head `head` of row `index` of the query rows; see AttentionDecodeWorker
// for the order of fragments.
template <typename T>
__device__ void FormQuery(const Args& args, int64_t index, int head) {
  const AttentionCudaAppendParams& p = args.p;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = p.first_query + index;
  const int dim = static_cast<int>(p.shape.head_dim);
  float x[8];
  AttentionLoadOctet(p.q + row * p.query_stride + head * dim, dim,
                     args.query_aligned, x);
  AttentionEncode(p.q_norm, p.position, row, dim, x);
  if (8 * lane >= dim) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = __fmul_rn(x[i], args.query_scale);
  if constexpr (sizeof(T) == 4) {
    AttentionStoreOctet(static_cast<float*>(p.queries) +
                            (index * p.shape.num_heads + head) * dim + 8 * lane,
                        x);
  } else {
    const int group = static_cast<int>(AttentionGroup(p.shape));
    const int64_t kv_head = head / group;
    const int of_group = head % group;
    const int64_t octet = (index * p.shape.num_kv_heads + kv_head) *
                              AttentionHeadOctets(p.shape) +
                          of_group / 8;
    auto* const to = static_cast<uint32_t*>(p.queries) +
                     (octet * (dim / 16) + lane / 2) * 128 + of_group % 8 * 16 +
                     lane % 2 * 2;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      uint32_t terms[Half<T>::kTerms];
      Split<T>(x[2 * t], x[2 * t + 1], terms);
      *reinterpret_cast<uint2*>(to + 4 * t) = {terms[0], terms[1]};
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    attention_append_kernel(const __grid_constant__ Args args) {
  LaunchDependents();
  WaitForPrevious();
  const AttentionCudaAppendParams& p = args.p;
  const int units = 2 * static_cast<int>(p.shape.num_kv_heads);
  const int heads = static_cast<int>(p.shape.num_heads);
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) +
                       Uniform(static_cast<int>(threadIdx.x) / 32);
  const int64_t appended = static_cast<int64_t>(p.rows) * units;
  if (warp < appended) {
    AppendHead<T>(args, warp / units, static_cast<int>(warp % units));
    return;
  }
  const int64_t query = warp - appended;
  if (query < static_cast<int64_t>(p.query_rows) * heads) {
    FormQuery<T>(args, query / heads, static_cast<int>(query % heads));
  }
}

template <typename T>
cudaError_t Launch(const Args& args, cudaStream_t stream) {
  const AttentionShape& s = args.p.shape;
  const int64_t warps = 2 * s.num_kv_heads * args.p.rows +
                        s.num_heads * int64_t{args.p.query_rows};
  const int64_t blocks = (warps + kThreads / 32 - 1) / (kThreads / 32);
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  return LaunchDependent(attention_append_kernel<T>,
                         dim3(static_cast<unsigned>(blocks)), kThreads, 0,
                         stream, args);
}

bool Valid(const AttentionCudaAppendParams& p,
           const AttentionPageLayout& layout) {
  if (!AttentionSupports(p.shape) || p.rows < 0 || p.query_rows < 0 ||
      p.first_query < 0 || p.query_rows > p.rows - p.first_query ||
      p.cache.page_stride % 8 != 0 ||
      p.cache.page_stride < layout.page_elements) {
    return false;
  }
  return p.rows == 0 ||
         (IsThere(p.cache.pages) && p.cache.page_table != nullptr &&
          p.row_sequence != nullptr && p.positions != nullptr &&
          p.k != nullptr && p.v != nullptr &&
          AttentionPositionComplete(p.position) &&
          (p.query_rows == 0 || (p.q != nullptr && IsThere(p.queries))));
}

}  // namespace

// ----------------------------------------------------------------------------
// Launchers

cudaError_t LaunchAttentionAppend(const AttentionCudaAppendParams& params,
                                  cudaStream_t stream) {
  const AttentionPageLayout layout(params.shape,
                                   AttentionOrderOf(params.cache.element));
  if (!Valid(params, layout)) return cudaErrorInvalidValue;
  if (params.rows == 0) return cudaSuccess;
  const Args args = {
      params, layout, params.scale * kLog2E,
      IsAligned(params.k) && IsAligned(params.v) && params.stride % 4 == 0,
      IsAligned(params.q) && params.query_stride % 4 == 0};
  switch (params.cache.element) {
    case WeightType::kFloat32:
      return Launch<float>(args, stream);
    case WeightType::kBFloat16:
      return Launch<__nv_bfloat16>(args, stream);
    case WeightType::kFloat16:
      return Launch<__half>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace recurve
