#include "tests/gpu/tpa_gpu_testing.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

// A page id outside every pool: following it leaves the address space.
constexpr int32_t kWildPage = 2147480000;
constexpr int64_t kPageGap = 8;  // elements
constexpr int64_t kRowGap = 5;

// Rows of B_q: one for each rank, or whole queries.
int64_t QueryRows(const TpaShape& s) {
  return s.q_rank > 0 ? s.q_rank : s.num_heads;
}
int64_t QueryElements(const TpaShape& s) {
  return s.q_rank * s.num_heads + QueryRows(s) * s.head_dim;
}

void Round(TpaElement element, std::vector<float>& values) {
  for (float& value : values) value = FromBits(element, ToBits(element, value));
}

}  // namespace

uint16_t ToBits(TpaElement element, float value) {
  if (element == TpaElement::kBFloat16) return FloatToBFloat16(value);
  const __half half = __float2half_rn(value);
  uint16_t bits;
  std::memcpy(&bits, &half, sizeof(bits));
  return bits;
}

float FromBits(TpaElement element, uint16_t bits) {
  return element == TpaElement::kBFloat16 ? BFloat16ToFloat(bits)
                                          : Float16ToFloat(bits);
}

std::string Describe(const TpaGpuConfig& c) {
  const TpaShape& s = c.shape;
  return "H" + std::to_string(s.num_heads) + " D" + std::to_string(s.head_dim) +
         " E" + std::to_string(s.value_dim) + " Rq" + std::to_string(s.q_rank) +
         " R" + std::to_string(s.kv_rank) +
         (c.element == TpaElement::kBFloat16 ? " bf16" : " fp16");
}

TpaSequence::TpaSequence(const TpaGpuConfig& config, int tokens, int q,
                         uint64_t seed)
    : length(tokens), queries(q) {
  const TpaShape& s = config.shape;
  const int64_t keys = tokens * s.kv_rank;
  a_k = RandomTensor(seed, keys * s.num_heads);
  b_k = RandomTensor(seed + 1, keys * s.head_dim);
  a_v = RandomTensor(seed + 2, keys * s.num_heads);
  b_v = RandomTensor(seed + 3, keys * s.value_dim);
  for (auto* factors : {&a_k, &b_k, &a_v, &b_v}) {
    Round(config.element, *factors);
  }
  a_q = RandomTensor(seed + 4, q * s.q_rank * s.num_heads, -2.0f, 2.0f);
  b_q = RandomTensor(seed + 5, q * QueryRows(s) * s.head_dim, -2.0f, 2.0f);
  for (float phase : RandomTensor(seed + 6, q * s.head_dim / 2, -3.0f, 3.0f)) {
    cos.push_back(std::cos(phase));
    sin.push_back(std::sin(phase));
  }
}

void TpaSequence::Ramp(const TpaGpuConfig& config, float from, float to) {
  const TpaShape& s = config.shape;
  std::fill(cos.begin(), cos.end(), 1.0f);
  std::fill(sin.begin(), sin.end(), 0.0f);
  std::fill(a_q.begin(), a_q.end(), 1.0f);
  for (float& x : b_q) x = 1.0f + 0.05f * x;
  std::fill(a_k.begin(), a_k.end(), 1.0f);
  const int64_t row = s.kv_rank * s.head_dim;
  for (size_t i = 0; i < b_k.size(); ++i) {
    const float at = static_cast<float>(i / row) /
                     static_cast<float>(std::max(length - 1, 1));
    b_k[i] = 0.1f * b_k[i] + (from + (to - from) * at) /
                                 std::sqrt(static_cast<float>(s.head_dim));
  }
  Round(config.element, b_k);
}

void TpaSequence::ScaleKeys(const TpaGpuConfig& config, float by) {
  for (float& x : b_k) x *= by;
  Round(config.element, b_k);
}

void TpaSequence::Change(const TpaGpuConfig& config,
                         const std::function<float(int, float)>& change) {
  int which = 0;
  for (auto* factors : {&a_k, &b_k, &a_v, &b_v}) {
    for (float& x : *factors) x = change(which, x);
    Round(config.element, *factors);
    ++which;
  }
}

namespace {

// Queries of all heads, with position: [H, D].
std::vector<double> Query(const TpaGpuConfig& config, const TpaSequence& seq,
                          int t) {
  const TpaShape& s = config.shape;
  const int64_t half = s.head_dim / 2;
  std::vector<double> q(s.num_heads * s.head_dim, 0.0);
  for (int64_t r = 0; r < QueryRows(s); ++r) {
    const float* x = seq.b_q.data() + (t * QueryRows(s) + r) * s.head_dim;
    std::vector<double> b(x, x + s.head_dim);
    for (int64_t k = 0; k < half && config.position == LrpeType::kRotate; ++k) {
      const double c = seq.cos[t * half + k];
      const double n = seq.sin[t * half + k];
      b[k] = x[k] * c - x[half + k] * n;
      b[half + k] = x[k] * n + x[half + k] * c;
    }
    if (s.q_rank == 0) std::copy(b.begin(), b.end(), &q[r * s.head_dim]);
    for (int64_t h = 0; h < s.num_heads && s.q_rank > 0; ++h) {
      const double a = seq.a_q[(t * s.q_rank + r) * s.num_heads + h];
      for (int64_t d = 0; d < s.head_dim; ++d) {
        q[h * s.head_dim + d] += a * b[d] / static_cast<double>(s.q_rank);
      }
    }
  }
  return q;
}

double Score(const TpaShape& s, const TpaSequence& seq, const double* q,
             int64_t m, int64_t h) {
  double score = 0.0;
  for (int64_t r = 0; r < s.kv_rank; ++r) {
    const float* b = seq.b_k.data() + (m * s.kv_rank + r) * s.head_dim;
    double dot = 0.0;
    for (int64_t d = 0; d < s.head_dim; ++d) dot += q[d] * b[d];
    score += seq.a_k[(m * s.kv_rank + r) * s.num_heads + h] * dot;
  }
  return score / (std::sqrt(static_cast<double>(s.head_dim)) *
                  static_cast<double>(s.kv_rank));
}

}  // namespace

std::vector<double> TpaGpuOracleOf(const TpaGpuConfig& config,
                                   const TpaSequence& seq, int t) {
  const TpaShape& s = config.shape;
  std::vector<double> out(s.num_heads * s.value_dim, 0.0);
  const int64_t visible = seq.length - seq.queries + 1 + t;
  if (visible <= 0) return out;
  const std::vector<double> q = Query(config, seq, t);
  for (int64_t h = 0; h < s.num_heads; ++h) {
    std::vector<double> weights(visible);
    for (int64_t m = 0; m < visible; ++m) {
      weights[m] = Score(s, seq, q.data() + h * s.head_dim, m, h);
    }
    const double max = *std::max_element(weights.begin(), weights.end());
    double sum = 0.0;
    for (double& weight : weights) sum += weight = std::exp(weight - max);
    double* o = out.data() + h * s.value_dim;
    for (int64_t m = 0; m < visible; ++m) {
      for (int64_t r = 0; r < s.kv_rank; ++r) {
        const double weight = weights[m] *
                              seq.a_v[(m * s.kv_rank + r) * s.num_heads + h] /
                              (sum * static_cast<double>(s.kv_rank));
        if (weight == 0.0) continue;
        const float* b = seq.b_v.data() + (m * s.kv_rank + r) * s.value_dim;
        for (int64_t e = 0; e < s.value_dim; ++e) o[e] += weight * b[e];
      }
    }
  }
  return out;
}

std::vector<double> TpaGpuOracle(const TpaGpuConfig& config,
                                 const TpaSequence& seq) {
  std::vector<double> out;
  for (int t = 0; t < seq.queries; ++t) {
    const std::vector<double> one = TpaGpuOracleOf(config, seq, t);
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

namespace {

// The page of token m of a sequence; pages of the pool are dealt in the order
// 7 i modulo its size, which visits every page.
struct PageDealer {
  int64_t pool;
  int64_t next = 1;

  explicit PageDealer(int64_t wanted) : pool(wanted + wanted / 3 + 2) {
    if (pool % 7 == 0) ++pool;
  }
  int32_t Deal() { return static_cast<int32_t>(7 * next++ % pool); }
};

void WriteToken(const TpaGpuConfig& config, const TpaPageLayout& layout,
                const TpaSequence& seq, int64_t token, uint16_t* page) {
  const TpaShape& s = config.shape;
  const int64_t m = token % kTpaPageTokens;
  const auto bits = [&](float x) { return ToBits(config.element, x); };
  for (int64_t r = 0; r < s.kv_rank; ++r) {
    const int64_t row = token * s.kv_rank + r;
    for (int64_t h = 0; h < layout.a_width; ++h) {
      const bool exists = h < s.num_heads;
      page[layout.AK(m, r, h)] =
          exists ? bits(seq.a_k[row * s.num_heads + h]) : 0;
      page[layout.AV(m, r, h)] =
          exists ? bits(seq.a_v[row * s.num_heads + h]) : 0;
    }
    for (int64_t d = 0; d < layout.b_k_width; ++d) {
      page[layout.BK(m, r, d)] =
          d < s.head_dim ? bits(seq.b_k[row * s.head_dim + d]) : 0;
    }
    for (int64_t e = 0; e < layout.b_v_width; ++e) {
      page[layout.BV(m, r, e)] =
          e < s.value_dim ? bits(seq.b_v[row * s.value_dim + e]) : 0;
    }
  }
}

}  // namespace

TpaHostCache MakeTpaHostCache(const TpaGpuConfig& config,
                              const std::vector<TpaCached>& rows) {
  const TpaPageLayout layout(config.shape, TpaPageOrder::kOctets);
  TpaHostCache cache;
  cache.page_stride = layout.page_elements + kPageGap;
  int64_t wanted = 0;
  cache.table_stride = 1;
  for (const TpaCached& row : rows) {
    const int64_t pages = (row.length + kTpaPageTokens - 1) / kTpaPageTokens;
    wanted += pages;
    cache.table_stride = std::max(cache.table_stride, pages + 2);
  }
  PageDealer dealer(wanted);
  cache.pages.assign(dealer.pool * cache.page_stride,
                     ToBits(config.element, kNaN));
  cache.table.assign(rows.size() * cache.table_stride, kWildPage);
  for (size_t row = 0; row < rows.size(); ++row) {
    for (int64_t token = 0; token < rows[row].length; ++token) {
      int32_t& page =
          cache.table[row * cache.table_stride + token / kTpaPageTokens];
      if (token % kTpaPageTokens == 0) page = dealer.Deal();
      WriteToken(config, layout, *rows[row].sequence, token,
                 cache.pages.data() + page * cache.page_stride);
    }
  }
  return cache;
}

TpaGpuBatch::TpaGpuBatch(const TpaGpuConfig& config,
                         const std::vector<const TpaSequence*>& sequences)
    : config_(config),
      rows_(static_cast<int>(sequences.size())),
      queries_(sequences[0]->queries) {
  const TpaShape& s = config.shape;
  std::vector<TpaCached> cached;
  for (const TpaSequence* seq : sequences) {
    cached.push_back({seq, seq->length});
  }
  const TpaHostCache cache = MakeTpaHostCache(config, cached);
  page_stride_ = cache.page_stride;
  table_stride_ = cache.table_stride;
  query_stride_ = QueryElements(s) + kRowGap;
  out_stride_ = s.num_heads * s.value_dim + kRowGap;
  std::vector<float> queries, cos, sin;
  for (int row = 0; row < rows_; ++row) {
    const TpaSequence& seq = *sequences[row];
    lengths_.push_back(seq.length);
    for (int t = 0; t < queries_; ++t) {
      const auto append = [&](const std::vector<float>& from, int64_t n) {
        queries.insert(queries.end(), from.begin() + t * n,
                       from.begin() + (t + 1) * n);
      };
      append(seq.a_q, s.q_rank * s.num_heads);
      append(seq.b_q, QueryElements(s) - s.q_rank * s.num_heads);
      queries.insert(queries.end(), kRowGap, kNaN);
    }
    cos.insert(cos.end(), seq.cos.begin(), seq.cos.end());
    sin.insert(sin.end(), seq.sin.begin(), seq.sin.end());
  }
  pages_.emplace(cache.pages);
  table_.emplace(cache.table);
  host_table_ = cache.table;
  queries_buffer_.emplace(queries);
  cos_.emplace(cos);
  sin_.emplace(sin);
  out_.emplace(std::vector<float>(rows_ * queries_ * out_stride_, kCanary));
}

TpaDecodePlan TpaGpuBatch::Plan(TpaDecodeForm form,
                                TpaContexts contexts) const {
  TpaDevice device = {};
  EXPECT_EQ(GetTpaDevice(&device), cudaSuccess);
  device.hopper = device.hopper && !portable_;
  return PlanTpaDecode(config_.shape, form, rows_, queries_, device, contexts);
}

TpaCudaDecodeParams TpaGpuBatch::Params(const TpaDecodePlan& plan) {
  const TpaShape& s = config_.shape;
  TpaCudaDecodeParams params = {};
  params.shape = s;
  params.cache = {config_.element, pages_->data(), page_stride_, table_->data(),
                  table_stride_};
  params.rows = rows_;
  params.new_tokens = queries_;
  queries_formed_.emplace(
      std::vector<uint8_t>(TpaQueryBytes(s, int64_t{rows_} * queries_), 0xff));
  params.queries = queries_formed_->data();
  params.fresh_tokens = queries_;
  params.out_type = WeightType::kFloat32;
  params.out = out_->data();
  params.out_stride = out_stride_;
  params.scratch_bytes = TpaDecodeScratchBytes(params, plan);
  // Every byte 0xff: NaN, and slots that do not exist.
  scratch_.emplace(std::vector<uint8_t>(params.scratch_bytes + 1, 0xff));
  params.scratch = scratch_->data();
  schedule_.emplace(
      std::vector<uint8_t>(TpaScheduleBytes(plan, rows_, table_stride_), 0xff));
  params.schedule = schedule_->data();
  Share(plan);
  params.next = next_;
  params.next_bytes = next_bytes_;
  return params;
}

void TpaGpuBatch::Share(const TpaDecodePlan& plan) {
  // Every byte 0xff: what is not written.
  std::vector<uint8_t> schedule(TpaScheduleBytes(plan, rows_, table_stride_),
                                0xff);
  EXPECT_TRUE(MakeTpaSchedule(
      {lengths_.data(), host_table_.data(), table_stride_, rows_}, plan,
      schedule.data()));
  schedule_->Write(schedule);
}

cudaError_t TpaGpuBatch::Launch(const TpaCudaDecodeParams& params,
                                const TpaDecodePlan& plan,
                                cudaStream_t stream) {
  const cudaError_t error = LaunchTpaQueries(QueryParams(), stream);
  if (error != cudaSuccess) return error;
  return LaunchTpaDecode(params, plan, stream);
}

TpaCudaQueryParams TpaGpuBatch::QueryParams() {
  const TpaShape& s = config_.shape;
  return {s,
          config_.element,
          rows_ * queries_,
          queries_buffer_->data(),
          queries_buffer_->data() + s.q_rank * s.num_heads,
          query_stride_,
          config_.position,
          cos_->data(),
          sin_->data(),
          queries_formed_->data()};
}

std::vector<float> TpaGpuBatch::Decode(TpaDecodeForm form) {
  return Decode(Plan(form));
}

std::vector<float> TpaGpuBatch::Decode(const TpaDecodePlan& plan) {
  out_->Write(std::vector<float>(rows_ * queries_ * out_stride_, kCanary));
  EXPECT_EQ(Launch(Params(plan), plan, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return Compact();
}

std::vector<float> TpaGpuBatch::Compact() const {
  const std::vector<float> all = out_->Read();
  const int64_t width = config_.shape.num_heads * config_.shape.value_dim;
  const std::vector<float> gap(kRowGap, kCanary);
  std::vector<float> compact;
  for (int64_t i = 0; i < rows_ * queries_; ++i) {
    const float* row = all.data() + i * out_stride_;
    compact.insert(compact.end(), row, row + width);
    EXPECT_TRUE(SameBits({row + width, kRowGap}, gap)) << "gap after " << i;
  }
  return compact;
}

void TpaGpuBatch::SetLengths(const std::vector<int32_t>& lengths) {
  ASSERT_EQ(lengths.size(), lengths_.size());
  lengths_ = lengths;
}

}  // namespace recurve
