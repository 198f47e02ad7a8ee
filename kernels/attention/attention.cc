#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/common/activation.h"

// clang-format off
#include "kernels/common/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/attention.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "kernels/common/vector_ops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve {
namespace HWY_NAMESPACE {

// Scores, weights and the partial output of one chunk.
struct SoftmaxScratch {
  std::vector<float> normed;   // [D] before the position
  std::vector<float> q;        // [D]
  std::vector<float> partial;  // [E]
  float scores[kAttentionPageTokens];
};

// y = position(norm(x)), of one head. `normed` is [dim] of scratch memory.
void EncodeHead(const AttentionNorm& norm, LrpeType position, const float* x,
                const float* cos, const float* sin, int64_t dim, float* normed,
                float* y) {
  if (norm.weight == nullptr) {
    LrpeApply(position, x, cos, sin, dim, y);
    return;
  }
  const float mean = Dot(x, x, dim) / static_cast<float>(dim);
  const float scale = 1.0f / std::sqrt(mean + norm.eps);
  for (int64_t i = 0; i < dim; ++i) normed[i] = x[i] * scale * norm.weight[i];
  LrpeApply(position, normed, cos, sin, dim, y);
}

void AttendHead(const AttentionAttendParams& p, int64_t row, int64_t head,
                SoftmaxScratch& s) {
  const AttentionShape& shape = p.shape;
  const AttentionPageLayout layout(shape);
  const int64_t kv_head = head / AttentionGroup(shape);
  const int64_t angles = LrpeAngles(p.position, shape.head_dim);
  const int64_t length = p.cache.positions[row] + 1;
  const int32_t* table = p.cache.PagesOf(row);
  float* out = p.out + row * p.out_stride + head * shape.value_dim;
  std::fill(out, out + shape.value_dim, 0.0f);
  EncodeHead(p.norm, p.position, p.q + row * p.stride + head * shape.head_dim,
             p.cos + row * angles, p.sin + row * angles, shape.head_dim,
             s.normed.data(), s.q.data());
  for (float& value : s.q) value *= p.scale;

  float max = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
  for (int64_t first = 0; first < length; first += kAttentionPageTokens) {
    const int64_t count = std::min(kAttentionPageTokens, length - first);
    const float* page = p.cache.pages + table[first / kAttentionPageTokens] *
                                            p.cache.page_stride;
    // Partial result of this page, with its own maximum.
    float chunk_max = -std::numeric_limits<float>::infinity();
    for (int64_t m = 0; m < count; ++m) {
      s.scores[m] =
          Dot(s.q.data(), page + layout.K(m, kv_head, 0), shape.head_dim);
      chunk_max = std::max(chunk_max, s.scores[m]);
    }
    float chunk_sum = 0.0f;
    std::fill(s.partial.begin(), s.partial.end(), 0.0f);
    for (int64_t m = 0; m < count; ++m) {
      const float weight = std::exp(s.scores[m] - chunk_max);
      chunk_sum += weight;
      AddScaled(weight, page + layout.V(m, kv_head, 0), s.partial.data(),
                shape.value_dim);
    }
    // Merge by log-sum-exp, in page order.
    const float new_max = std::max(max, chunk_max);
    const float old_scale =
        std::exp(max - new_max);  // exp(-inf) = 0 at the first page
    const float chunk_scale = std::exp(chunk_max - new_max);
    sum = sum * old_scale + chunk_sum * chunk_scale;
    for (int64_t e = 0; e < shape.value_dim; ++e) {
      out[e] = out[e] * old_scale + s.partial[e] * chunk_scale;
    }
    max = new_max;
  }
  if (length <= 0) return;
  const float scale = 1.0f / sum;
  for (int64_t e = 0; e < shape.value_dim; ++e) out[e] *= scale;
  if (p.gate == nullptr) return;
  const float* gate = p.gate + row * p.gate_stride + head * shape.value_dim;
  for (int64_t e = 0; e < shape.value_dim; ++e) out[e] *= Sigmoid(gate[e]);
}

void AttendRowHead(const AttentionAttendParams& p, int64_t row, int64_t head) {
  thread_local SoftmaxScratch scratch;
  scratch.normed.resize(p.shape.head_dim);
  scratch.q.resize(p.shape.head_dim);
  scratch.partial.resize(p.shape.value_dim);
  AttendHead(p, row, head, scratch);
}

void AppendRow(const AttentionAppendParams& p, int64_t row) {
  const AttentionShape& shape = p.shape;
  const AttentionPageLayout layout(shape);
  const int64_t angles = LrpeAngles(p.position, shape.head_dim);
  const int64_t position = p.cache.positions[row];
  const int32_t page_id = p.cache.PagesOf(row)[position / kAttentionPageTokens];
  float* page = p.cache.pages + page_id * p.cache.page_stride;
  const int64_t m = position % kAttentionPageTokens;
  thread_local std::vector<float> normed;
  normed.resize(shape.head_dim);
  for (int64_t g = 0; g < shape.num_kv_heads; ++g) {
    EncodeHead(p.norm, p.position, p.k + row * p.stride + g * shape.head_dim,
               p.cos + row * angles, p.sin + row * angles, shape.head_dim,
               normed.data(), page + layout.K(m, g, 0));
    std::copy_n(p.v + row * p.stride + g * shape.value_dim, shape.value_dim,
                page + layout.V(m, g, 0));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace recurve
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve {

HWY_EXPORT(AttendRowHead);
HWY_EXPORT(AppendRow);

void AttentionAttend(const AttentionAttendParams& params, ThreadPool& pool) {
  const int64_t heads = params.shape.num_heads;
  pool.ParallelFor(params.cache.rows * heads, [&](int64_t item) {
    HWY_DYNAMIC_DISPATCH(AttendRowHead)(params, item / heads, item % heads);
  });
}

void AttentionAppend(const AttentionAppendParams& params, ThreadPool& pool) {
  pool.ParallelFor(params.cache.rows, [&](int64_t row) {
    HWY_DYNAMIC_DISPATCH(AppendRow)(params, row);
  });
}

}  // namespace recurve
#endif  // HWY_ONCE
