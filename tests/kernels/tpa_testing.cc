#include "tests/kernels/tpa_testing.h"

#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "tests/kernels/activation_oracle.h"
#include "tests/kernels/lrpe_oracle.h"
#include "tests/kernels/lrpe_table.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

// A page id outside every pool: following it leaves the address space.
constexpr int32_t kWildPage = 2147480000;
constexpr int64_t kGap = 5;  // elements between pages and between rows

// (1/R) Σ_r act(a[r, head]) · position(b[r]).
std::vector<double> Combine(const TpaTokens& tokens, const float* a,
                            const float* b, int64_t rank, int64_t dim,
                            int64_t head, LrpeType type, int64_t position,
                            Activation activation = Activation::kNone) {
  std::vector<double> sum(dim, 0.0);
  for (int64_t r = 0; r < rank; ++r) {
    const std::vector<double> row(b + r * dim, b + (r + 1) * dim);
    const std::vector<double> encoded =
        LrpeOracle(type, row, position, tokens.config.base);
    const double weight = ActivationOracle(
        activation, a[r * tokens.config.shape.num_heads + head]);
    for (int64_t i = 0; i < dim; ++i) {
      sum[i] += weight * encoded[i] / static_cast<double>(rank);
    }
  }
  return sum;
}

std::vector<double> Query(const TpaTokens& tokens, int64_t position,
                          int64_t head) {
  const TpaShape& s = tokens.config.shape;
  const float* row = tokens.Row(position);
  if (s.q_rank > 0) {
    return Combine(tokens, row + tokens.a_q, row + tokens.b_q, s.q_rank,
                   s.head_dim, head, tokens.config.position, position);
  }
  const float* whole = row + tokens.b_q + head * s.head_dim;
  return LrpeOracle(tokens.config.position,
                    std::vector<double>(whole, whole + s.head_dim), position,
                    tokens.config.base);
}

std::vector<double> SoftmaxAverage(const std::vector<double>& scores,
                                   const std::vector<std::vector<double>>& v) {
  const double max = *std::max_element(scores.begin(), scores.end());
  double total = 0.0;
  std::vector<double> out(v[0].size(), 0.0);
  for (size_t m = 0; m < scores.size(); ++m) {
    const double weight = std::exp(scores[m] - max);
    total += weight;
    for (size_t e = 0; e < out.size(); ++e) out[e] += weight * v[m][e];
  }
  for (double& value : out) value /= total;
  return out;
}

}  // namespace

TpaTokens::TpaTokens(const TpaTestConfig& c, int64_t n, uint64_t seed)
    : config(c), length(n) {
  const TpaShape& s = c.shape;
  a_q = 0;
  b_q = a_q + s.q_rank * s.num_heads;
  a_k = b_q + (s.q_rank > 0 ? s.q_rank : s.num_heads) * s.head_dim;
  b_k = a_k + s.kv_rank * s.num_heads;
  a_v = b_k + s.kv_rank * s.head_dim;
  b_v = a_v + s.kv_rank * s.num_heads;
  stride = b_v + s.kv_rank * s.value_dim + kGap;
  data = RandomTensor(seed, length * stride);
  for (int64_t t = 0; t < length; ++t) {
    std::fill_n(Row(t) + stride - kGap, kGap, kNaN);
  }
}

void TpaTokens::Ramp(double from, double to) {
  const TpaShape& s = config.shape;
  // With a_q = a_k = 1, and b_q near 1 everywhere, adding c to every element of
  // b_k adds D^1/2 · c to a score.
  for (int64_t t = 0; t < length; ++t) {
    const double at = static_cast<double>(t) /
                      static_cast<double>(std::max<int64_t>(length - 1, 1));
    const double step =
        (from + (to - from) * at) / std::sqrt(static_cast<double>(s.head_dim));
    float* row = Row(t);
    std::fill_n(row + a_q, s.q_rank * s.num_heads, 1.0f);
    std::fill_n(row + a_k, s.kv_rank * s.num_heads, 1.0f);
    for (int64_t i = 0; i < s.q_rank * s.head_dim; ++i) {
      row[b_q + i] = 1.0f + 0.1f * row[b_q + i];
    }
    for (int64_t i = 0; i < s.kv_rank * s.head_dim; ++i) {
      row[b_k + i] = 0.1f * row[b_k + i] + static_cast<float>(step);
    }
  }
}

std::vector<std::vector<double>> TpaOracle(const TpaTokens& tokens,
                                           absl::Span<const int64_t> rows) {
  const TpaShape& s = tokens.config.shape;
  const LrpeType type = tokens.config.position;
  std::vector<std::vector<double>> out(rows.size());
  for (int64_t h = 0; h < s.num_heads; ++h) {
    std::vector<std::vector<double>> k;
    std::vector<std::vector<double>> v;
    for (int64_t m = 0; m < tokens.length; ++m) {
      const float* row = tokens.Row(m);
      k.push_back(Combine(tokens, row + tokens.a_k, row + tokens.b_k, s.kv_rank,
                          s.head_dim, h, type, m, tokens.config.activation));
      v.push_back(Combine(tokens, row + tokens.a_v, row + tokens.b_v, s.kv_rank,
                          s.value_dim, h, LrpeType::kNone, m,
                          tokens.config.activation));
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::vector<double> q = Query(tokens, rows[i], h);
      std::vector<double> scores(rows[i] + 1, 0.0);
      for (int64_t m = 0; m <= rows[i]; ++m) {
        for (int64_t d = 0; d < s.head_dim; ++d) scores[m] += q[d] * k[m][d];
        scores[m] /= std::sqrt(static_cast<double>(s.head_dim));
      }
      const std::vector<double> head = SoftmaxAverage(scores, v);
      out[i].insert(out[i].end(), head.begin(), head.end());
    }
  }
  return out;
}

TpaTestCache::TpaTestCache(absl::Span<const TpaTokens* const> sequences)
    : sequences_(sequences.begin(), sequences.end()),
      config_(sequences[0]->config),
      page_stride_(TpaPageLayout(config_.shape).page_elements + kGap),
      owned_(sequences.size()),
      known_(sequences.size(), 0) {
  int64_t wanted = 0;
  for (size_t b = 0; b < sequences_.size(); ++b) {
    const int64_t pages =
        (sequences_[b]->length + kTpaPageTokens - 1) / kTpaPageTokens;
    wanted += pages;
    table_stride_ = std::max(table_stride_, pages + 2);
  }
  // A pool with a third to spare, dealt in the order 7 i modulo its size, which
  // visits every page.
  int64_t pool = wanted + wanted / 3 + 2;
  if (pool % 7 == 0) ++pool;
  int64_t next = 1;
  for (size_t b = 0; b < sequences_.size(); ++b) {
    const int64_t pages =
        (sequences_[b]->length + kTpaPageTokens - 1) / kTpaPageTokens;
    for (int64_t i = 0; i < pages; ++i, ++next) {
      owned_[b].push_back(static_cast<int32_t>(7 * next % pool));
    }
  }
  pages_.assign(pool * page_stride_, kNaN);
}

std::vector<int32_t> TpaTestCache::PageTable(absl::Span<const TpaRow> rows) {
  for (const TpaRow& row : rows) {
    known_[row.sequence] = std::max(known_[row.sequence], row.position + 1);
  }
  std::vector<int32_t> table(sequences_.size() * table_stride_, kWildPage);
  for (size_t b = 0; b < sequences_.size(); ++b) {
    for (int64_t i = 0; i * kTpaPageTokens < known_[b]; ++i) {
      table[b * table_stride_ + i] = owned_[b][i];
    }
  }
  return table;
}

std::vector<float> TpaTestCache::Step(absl::Span<const TpaRow> rows,
                                      ThreadPool& pool) {
  const TpaTokens& t = *sequences_[0];
  const TpaShape& shape = config_.shape;
  std::vector<float> in;
  std::vector<int32_t> row_sequence;
  std::vector<int64_t> positions;
  for (const TpaRow& row : rows) {
    const float* factors = sequences_[row.sequence]->Row(row.position);
    in.insert(in.end(), factors, factors + t.stride);
    row_sequence.push_back(static_cast<int32_t>(row.sequence));
    positions.push_back(row.position);
  }
  const LrpeTestTable lrpe(config_.position, shape.head_dim, config_.base,
                           positions, pool);
  const std::vector<int32_t> table = PageTable(rows);
  const int64_t count = static_cast<int64_t>(rows.size());
  const PagedCacheView view = {
      pages_.data(),       page_stride_,     table.data(), table_stride_,
      row_sequence.data(), positions.data(), count};
  TpaAppend({shape, view, in.data() + t.a_k, in.data() + t.b_k,
             in.data() + t.a_v, in.data() + t.b_v, t.stride, config_.position,
             lrpe.cos.data(), lrpe.sin.data(), config_.activation},
            pool);
  const int64_t width = shape.num_heads * shape.value_dim;
  const int64_t out_stride = width + kGap;
  std::vector<float> out(count * out_stride, kCanary);
  TpaAttend({shape, view, in.data() + t.a_q, in.data() + t.b_q, t.stride,
             config_.position, lrpe.cos.data(), lrpe.sin.data(), out.data(),
             out_stride},
            pool);
  const std::vector<float> gap(kGap, kCanary);
  std::vector<float> compact;
  for (int64_t r = 0; r < count; ++r) {
    const float* row = out.data() + r * out_stride;
    compact.insert(compact.end(), row, row + width);
    EXPECT_TRUE(SameBits({row + width, kGap}, gap)) << "gap after row " << r;
  }
  return compact;
}

std::vector<float> TpaTestCache::Run(absl::Span<const int64_t> cuts,
                                     ThreadPool& pool) {
  std::vector<float> out;
  int64_t position = 0;
  for (int64_t cut : cuts) {
    std::vector<TpaRow> rows;
    for (int64_t i = 0; i < cut; ++i) rows.push_back({0, position++});
    const std::vector<float> step = Step(rows, pool);
    out.insert(out.end(), step.begin(), step.end());
  }
  EXPECT_EQ(position, sequences_[0]->length);
  return out;
}

}  // namespace recurve
