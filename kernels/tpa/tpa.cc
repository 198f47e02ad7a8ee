#include "kernels/tpa/tpa.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/thread_pool.h"

// clang-format off
#include "kernels/common/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/tpa/tpa.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "kernels/common/vector_ops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve {
namespace HWY_NAMESPACE {

// Scores, weights and the partial output of one chunk.
struct AttendScratch {
  std::vector<float> encoded;  // one B_q row with its position
  std::vector<float> q;        // [D]
  std::vector<float> partial;  // [E]
  float scores[kTpaPageTokens];
};

// q[h] = (1/Rq) Σ_r A_q[r,h] · position(B_q[r]), or position(q[h]) of a whole
// query, times all factors of a score: D^-1/2 and the 1/R of the keys.
void FormQuery(const TpaAttendParams& p, int64_t row, int64_t head,
               AttendScratch& s) {
  const TpaShape& shape = p.shape;
  const int64_t dim = shape.head_dim;
  const int64_t angles = LrpeAngles(p.position, dim);
  const int64_t rank = std::max<int64_t>(shape.q_rank, 1);
  const float scale = 1.0f / (std::sqrt(static_cast<float>(dim)) *
                              static_cast<float>(rank * shape.kv_rank));
  if (shape.q_rank == 0) {
    LrpeApply(p.position, p.b_q + row * p.stride + head * dim,
              p.cos + row * angles, p.sin + row * angles, dim, s.q.data());
    for (float& value : s.q) value *= scale;
    return;
  }
  std::fill(s.q.begin(), s.q.end(), 0.0f);
  for (int64_t r = 0; r < shape.q_rank; ++r) {
    LrpeApply(p.position, p.b_q + row * p.stride + r * dim,
              p.cos + row * angles, p.sin + row * angles, dim,
              s.encoded.data());
    AddScaled(p.a_q[row * p.stride + r * shape.num_heads + head],
              s.encoded.data(), s.q.data(), dim);
  }
  for (float& value : s.q) value *= scale;
}

void AttendOne(const TpaAttendParams& p, int64_t row, int64_t head,
               AttendScratch& s) {
  const TpaShape& shape = p.shape;
  const TpaPageLayout layout(shape);
  const int64_t length = p.cache.positions[row] + 1;
  const int32_t* table = p.cache.PagesOf(row);
  float* out = p.out + row * p.out_stride + head * shape.value_dim;
  std::fill(out, out + shape.value_dim, 0.0f);
  FormQuery(p, row, head, s);

  float max = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
  for (int64_t first = 0; first < length; first += kTpaPageTokens) {
    const int64_t count = std::min(kTpaPageTokens, length - first);
    const float* page =
        p.cache.pages + table[first / kTpaPageTokens] * p.cache.page_stride;
    // Partial result of this page, with its own maximum.
    float chunk_max = -std::numeric_limits<float>::infinity();
    for (int64_t m = 0; m < count; ++m) {
      float score = 0.0f;
      for (int64_t r = 0; r < shape.kv_rank; ++r) {
        score += page[layout.AK(m, r, head)] *
                 Dot(s.q.data(), page + layout.BK(m, r, 0), shape.head_dim);
      }
      s.scores[m] = score;
      chunk_max = std::max(chunk_max, score);
    }
    float chunk_sum = 0.0f;
    std::fill(s.partial.begin(), s.partial.end(), 0.0f);
    for (int64_t m = 0; m < count; ++m) {
      const float weight = std::exp(s.scores[m] - chunk_max);
      chunk_sum += weight;
      for (int64_t r = 0; r < shape.kv_rank; ++r) {
        AddScaled(weight * page[layout.AV(m, r, head)],
                  page + layout.BV(m, r, 0), s.partial.data(), shape.value_dim);
      }
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
  if (length > 0) {
    const float scale = 1.0f / (sum * static_cast<float>(shape.kv_rank));
    for (int64_t e = 0; e < shape.value_dim; ++e) out[e] *= scale;
  }
}

void AttendRow(const TpaAttendParams& p, int64_t row, int64_t head) {
  thread_local AttendScratch scratch;
  scratch.encoded.resize(p.shape.head_dim);
  scratch.q.resize(p.shape.head_dim);
  scratch.partial.resize(p.shape.value_dim);
  AttendOne(p, row, head, scratch);
}

}  // namespace HWY_NAMESPACE
}  // namespace recurve
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve {

HWY_EXPORT(AttendRow);

void TpaAttend(const TpaAttendParams& params, ThreadPool& pool) {
  const int64_t heads = params.shape.num_heads;
  pool.ParallelFor(params.cache.rows * heads, [&](int64_t item) {
    HWY_DYNAMIC_DISPATCH(AttendRow)(params, item / heads, item % heads);
  });
}

void TpaAppend(const TpaAppendParams& p, ThreadPool& pool) {
  const TpaShape& shape = p.shape;
  const TpaPageLayout layout(shape);
  const int64_t angles = LrpeAngles(p.position, shape.head_dim);
  pool.ParallelFor(p.cache.rows, [&](int64_t row) {
    const int64_t position = p.cache.positions[row];
    const int32_t page_id = p.cache.PagesOf(row)[position / kTpaPageTokens];
    float* page = p.cache.pages + page_id * p.cache.page_stride;
    const int64_t m = position % kTpaPageTokens;
    const float* a_k = p.a_k + row * p.stride;
    const float* a_v = p.a_v + row * p.stride;
    const float* b_v = p.b_v + row * p.stride;
    const int64_t factors = shape.kv_rank * shape.num_heads;
    thread_local std::vector<float> activated;  // [2, R·H]
    activated.resize(2 * factors);
    ActivateRow(p.activation, a_k, activated.data(), factors);
    ActivateRow(p.activation, a_v, activated.data() + factors, factors);
    for (int64_t r = 0; r < shape.kv_rank; ++r) {
      std::copy_n(activated.data() + r * shape.num_heads, shape.num_heads,
                  page + layout.AK(m, r, 0));
      LrpeApply(p.position, p.b_k + row * p.stride + r * shape.head_dim,
                p.cos + row * angles, p.sin + row * angles, shape.head_dim,
                page + layout.BK(m, r, 0));
      std::copy_n(activated.data() + factors + r * shape.num_heads,
                  shape.num_heads, page + layout.AV(m, r, 0));
      std::copy_n(b_v + r * shape.value_dim, shape.value_dim,
                  page + layout.BV(m, r, 0));
    }
  });
}

}  // namespace recurve
#endif  // HWY_ONCE
