#include "tests/kernels/attention_testing.h"

#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "tests/kernels/lrpe_oracle.h"
#include "tests/kernels/lrpe_table.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

// A page id outside every pool: following it leaves the address space.
constexpr int32_t kNoSuchPage = 2147480000;
constexpr int64_t kSpace = 5;  // elements between pages and between rows

// One head of queries or keys with its norm and position.
std::vector<double> EncodedHead(const AttentionTokens& tokens, const float* x,
                                const std::vector<float>& weight,
                                int64_t position) {
  std::vector<double> head(x, x + tokens.config.shape.head_dim);
  if (tokens.config.norms) {
    double mean = 0.0;
    for (double value : head) mean += value * value;
    mean /= static_cast<double>(head.size());
    for (size_t i = 0; i < head.size(); ++i) {
      head[i] *= weight[i] / std::sqrt(mean + tokens.eps);
    }
  }
  return LrpeOracle(tokens.config.position, head, position, tokens.config.base);
}

}  // namespace

AttentionTokens::AttentionTokens(const AttentionTestConfig& c, int64_t n,
                                 uint64_t seed)
    : config(c), length(n) {
  const AttentionShape& s = c.shape;
  q = 0;
  k = q + s.num_heads * s.head_dim;
  v = k + s.num_kv_heads * s.head_dim;
  gate = v + s.num_kv_heads * s.value_dim;
  stride = gate + s.num_heads * s.value_dim + kSpace;
  data = RandomTensor(seed, length * stride);
  for (int64_t t = 0; t < length; ++t) {
    std::fill_n(Row(t) + stride - kSpace, kSpace, kNaN);
  }
  q_weight = RandomTensor(1001, s.head_dim, 0.5f, 1.5f);
  k_weight = RandomTensor(1002, s.head_dim, 0.5f, 1.5f);
}

float AttentionTokens::Scale() const {
  return config.scale != 0.0
             ? static_cast<float>(config.scale)
             : 1.0f / std::sqrt(static_cast<float>(config.shape.head_dim));
}

void AttentionTokens::Ramp(double from, double to) {
  const AttentionShape& s = config.shape;
  // With q near 1 everywhere, adding c to every element of k adds D · c to a
  // product.
  for (int64_t t = 0; t < length; ++t) {
    const double at = static_cast<double>(t) /
                      static_cast<double>(std::max<int64_t>(length - 1, 1));
    const double step =
        (from + (to - from) * at) / (static_cast<double>(s.head_dim) * Scale());
    float* row = Row(t);
    for (int64_t i = q; i < k; ++i) row[i] = 1.0f + 0.1f * row[i];
    for (int64_t i = k; i < v; ++i) {
      row[i] = 0.1f * row[i] + static_cast<float>(step);
    }
  }
}

std::vector<double> AttentionKeyOracle(const AttentionTokens& tokens,
                                       int64_t token, int64_t g) {
  return EncodedHead(
      tokens, tokens.Row(token) + tokens.k + g * tokens.config.shape.head_dim,
      tokens.k_weight, token);
}

std::vector<std::vector<double>> AttentionOracle(
    const AttentionTokens& tokens, absl::Span<const int64_t> rows) {
  const AttentionShape& s = tokens.config.shape;
  std::vector<std::vector<double>> out(rows.size());
  for (int64_t h = 0; h < s.num_heads; ++h) {
    const int64_t g = h * s.num_kv_heads / s.num_heads;
    std::vector<std::vector<double>> keys;
    for (int64_t m = 0; m < tokens.length; ++m) {
      keys.push_back(AttentionKeyOracle(tokens, m, g));
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      const float* row = tokens.Row(rows[i]);
      const std::vector<double> query = EncodedHead(
          tokens, row + tokens.q + h * s.head_dim, tokens.q_weight, rows[i]);
      std::vector<double> scores(rows[i] + 1, 0.0);
      for (int64_t m = 0; m <= rows[i]; ++m) {
        for (int64_t d = 0; d < s.head_dim; ++d) {
          scores[m] += query[d] * keys[m][d];
        }
        scores[m] *= tokens.Scale();
      }
      const double max = *std::max_element(scores.begin(), scores.end());
      double total = 0.0;
      std::vector<double> head(s.value_dim, 0.0);
      for (int64_t m = 0; m <= rows[i]; ++m) {
        const double weight = std::exp(scores[m] - max);
        total += weight;
        const float* value = tokens.Row(m) + tokens.v + g * s.value_dim;
        for (int64_t e = 0; e < s.value_dim; ++e) head[e] += weight * value[e];
      }
      for (int64_t e = 0; e < s.value_dim; ++e) {
        head[e] /= total;
        if (tokens.config.gate) {
          const double x = row[tokens.gate + h * s.value_dim + e];
          head[e] /= 1.0 + std::exp(-x);
        }
      }
      out[i].insert(out[i].end(), head.begin(), head.end());
    }
  }
  return out;
}

AttentionTestCache::AttentionTestCache(
    absl::Span<const AttentionTokens* const> sequences)
    : sequences_(sequences.begin(), sequences.end()),
      config_(sequences[0]->config),
      page_stride_(AttentionPageLayout(config_.shape).page_elements + kSpace),
      owned_(sequences.size()),
      known_(sequences.size(), 0) {
  int64_t wanted = 0;
  for (const AttentionTokens* tokens : sequences_) {
    const int64_t pages =
        (tokens->length + kAttentionPageTokens - 1) / kAttentionPageTokens;
    wanted += pages;
    table_stride_ = std::max(table_stride_, pages + 2);
  }
  // A pool with a third to spare, dealt in the order 7 i modulo its size, which
  // visits every page.
  int64_t pool = wanted + wanted / 3 + 2;
  if (pool % 7 == 0) ++pool;
  int64_t next = 1;
  for (size_t b = 0; b < sequences_.size(); ++b) {
    for (int64_t i = 0; i * kAttentionPageTokens < sequences_[b]->length;
         ++i, ++next) {
      owned_[b].push_back(static_cast<int32_t>(7 * next % pool));
    }
  }
  pages_.assign(pool * page_stride_, kNaN);
}

std::vector<int32_t> AttentionTestCache::PageTable(
    absl::Span<const AttentionRow> rows) {
  for (const AttentionRow& row : rows) {
    known_[row.sequence] = std::max(known_[row.sequence], row.position + 1);
  }
  std::vector<int32_t> table(sequences_.size() * table_stride_, kNoSuchPage);
  for (size_t b = 0; b < sequences_.size(); ++b) {
    for (int64_t i = 0; i * kAttentionPageTokens < known_[b]; ++i) {
      table[b * table_stride_ + i] = owned_[b][i];
    }
  }
  return table;
}

std::vector<float> AttentionTestCache::Launch(
    absl::Span<const AttentionRow> rows, bool append, ThreadPool& pool) {
  const AttentionTokens& t = *sequences_[0];
  const AttentionShape& shape = config_.shape;
  std::vector<float> in;
  std::vector<int32_t> row_sequence;
  std::vector<int64_t> positions;
  for (const AttentionRow& row : rows) {
    const float* from =
        sequences_[row.sequence]->Row(std::max<int64_t>(row.position, 0));
    in.insert(in.end(), from, from + t.stride);
    row_sequence.push_back(static_cast<int32_t>(row.sequence));
    positions.push_back(row.position);
  }
  std::vector<int64_t> angles = positions;
  for (int64_t& position : angles) position = std::max<int64_t>(position, 0);
  const LrpeTestTable lrpe(config_.position, shape.head_dim, config_.base,
                           angles, pool);
  const std::vector<int32_t> table = PageTable(rows);
  const int64_t count = static_cast<int64_t>(rows.size());
  const PagedCacheView view = {
      pages_.data(),       page_stride_,     table.data(), table_stride_,
      row_sequence.data(), positions.data(), count};
  const bool norms = config_.norms;
  if (append) {
    AttentionAppend({shape,
                     view,
                     in.data() + t.k,
                     in.data() + t.v,
                     t.stride,
                     config_.position,
                     lrpe.cos.data(),
                     lrpe.sin.data(),
                     {norms ? t.k_weight.data() : nullptr, t.eps}},
                    pool);
  }
  const int64_t width = shape.num_heads * shape.value_dim;
  const int64_t out_stride = width + kSpace;
  std::vector<float> out(count * out_stride, kCanary);
  AttentionAttend({shape,
                   view,
                   in.data() + t.q,
                   t.stride,
                   t.Scale(),
                   config_.position,
                   lrpe.cos.data(),
                   lrpe.sin.data(),
                   {norms ? t.q_weight.data() : nullptr, t.eps},
                   config_.gate ? in.data() + t.gate : nullptr,
                   t.stride,
                   out.data(),
                   out_stride},
                  pool);
  const std::vector<float> gap(kSpace, kCanary);
  std::vector<float> compact;
  for (int64_t r = 0; r < count; ++r) {
    const float* row = out.data() + r * out_stride;
    compact.insert(compact.end(), row, row + width);
    EXPECT_TRUE(SameBits({row + width, kSpace}, gap)) << "gap after row " << r;
  }
  return compact;
}

std::vector<float> AttentionTestCache::Step(absl::Span<const AttentionRow> rows,
                                            ThreadPool& pool) {
  return Launch(rows, true, pool);
}

std::vector<float> AttentionTestCache::Attend(
    absl::Span<const AttentionRow> rows, ThreadPool& pool) {
  return Launch(rows, false, pool);
}

std::vector<float> AttentionTestCache::Run(absl::Span<const int64_t> cuts,
                                           ThreadPool& pool) {
  std::vector<float> out;
  int64_t position = 0;
  for (int64_t cut : cuts) {
    std::vector<AttentionRow> rows;
    for (int64_t i = 0; i < cut; ++i) rows.push_back({0, position++});
    const std::vector<float> step = Step(rows, pool);
    out.insert(out.end(), step.begin(), step.end());
  }
  EXPECT_EQ(position, sequences_[0]->length);
  return out;
}

}  // namespace recurve
