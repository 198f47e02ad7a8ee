// Measures TPA prefill.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "bench/cuda/device_values.h"
#include "bench/cuda/tpa_prefill_bench.h"
#include "kernels/tpa/prefill/tpa_prefill_cuda.h"

namespace recurve {
namespace bench {
namespace {

constexpr double kTolerance = 6e-3;  // outputs are rounded to bfloat16, too
constexpr int kSets = 2;             // of inputs, so that none is in a cache

struct Row {
  int32_t length;
  int32_t queries;
};
struct Case {
  std::string name;
  TpaShape shape;
  std::vector<Row> rows;
};

class TpaPrefillBench {
 public:
  explicit TpaPrefillBench(const Case& c)
      : case_(c), layout_(c.shape, TpaPageOrder::kOctets) {
    std::vector<int32_t> lengths;
    starts_ = {0};
    int64_t pages = 0;
    int64_t context = 0;
    for (const Row& row : c.rows) {
      lengths.push_back(row.length);
      starts_.push_back(starts_.back() + row.queries);
      const int64_t row_pages = (row.length + 63) / 64;
      table_stride_ = std::max(table_stride_, row_pages);
      pages += row_pages;
      context += row.length;
    }
    const int64_t tokens = starts_.back();
    MakeTable(pages);
    const TpaShape& s = c.shape;
    page_bytes_ = 2 * pages * layout_.page_elements;
    pages_ = static_cast<char*>(RandomMemory(kSets * page_bytes_, true));
    query_stride_ = s.q_rank * (s.num_heads + s.head_dim);
    queries_ = static_cast<float*>(
        RandomMemory(kSets * tokens * query_stride_ * 4, false));
    angles_ = static_cast<float*>(RandomMemory(tokens * s.head_dim * 4, false));
    out_ = static_cast<uint16_t*>(
        RandomMemory(tokens * s.num_heads * s.value_dim * 2, true));
    device_table_ = DeviceCopy(table_);
    device_starts_ = DeviceCopy(starts_);
    device_lengths_ = DeviceCopy(lengths);
    plan_ = PlanTpaPrefill(s, {static_cast<int>(c.rows.size()), tokens, context,
                               int64_t{8} << 30});
    schedule_ = RandomMemory(plan_.schedule_bytes, false);
    scratch_ = RandomMemory(plan_.scratch_bytes, false);
    RECURVE_CUDA_OK(Schedule(nullptr));
  }
  ~TpaPrefillBench() {
    for (const void* memory :
         {static_cast<const void*>(pages_), static_cast<const void*>(queries_),
          static_cast<const void*>(angles_), static_cast<const void*>(out_),
          static_cast<const void*>(device_table_),
          static_cast<const void*>(device_starts_),
          static_cast<const void*>(device_lengths_),
          static_cast<const void*>(schedule_),
          static_cast<const void*>(scratch_)}) {
      cudaFree(const_cast<void*>(memory));
    }
  }

  // Ends the program unless some queries of some heads agree with float64.
  void Check() {
    const TpaPrefillParams p = Params(0);
    RECURVE_CUDA_OK(LaunchTpaPrefill(p, plan_, nullptr));
    RECURVE_CUDA_OK(cudaDeviceSynchronize());
    const TpaShape& s = case_.shape;
    for (int row : {0, static_cast<int>(case_.rows.size()) - 1}) {
      const std::vector<uint16_t> pages = RowPages(row);
      const int last = case_.rows[row].queries - 1;
      for (int query : {0, last / 3, last}) {
        for (int64_t head : {int64_t{0}, s.num_heads - 1}) {
          const std::vector<double> want = Oracle(row, query, head, pages);
          const std::vector<uint16_t> got =
              HostCopy(out_ + ((starts_[row] + query) * s.num_heads + head) *
                                  s.value_dim,
                       s.value_dim);
          const double error = RelativeError(got.data(), want);
          if (!(error <= kTolerance)) {
            std::fprintf(stderr,
                         "tpa_prefill %s: row %d query %d head %d is wrong by "
                         "%g\n",
                         case_.name.c_str(), row, query, static_cast<int>(head),
                         error);
            std::exit(1);
          }
        }
      }
    }
  }

  Result Run() {
    const Timing timing = Measure(
        [this](cudaStream_t stream, int call) {
          return LaunchTpaPrefill(Params(call % kSets), plan_, stream);
        },
        kSets, true);
    const TpaShape& s = case_.shape;
    // Pairs of a query and a token that it sees.
    double pairs = 0.0;
    for (const Row& row : case_.rows) {
      pairs += row.queries * (row.length - 0.5 * row.queries);
    }
    const double flops = 2.0 * pairs * s.num_heads * (s.head_dim + s.value_dim);
    const double bytes = page_bytes_ +
                         4.0 * starts_.back() * (query_stride_ + s.head_dim) +
                         2.0 * starts_.back() * s.num_heads * s.value_dim;
    return {"tpa_prefill", case_.name, timing, bytes, flops};
  }
  Result RunSchedule() {
    const Timing timing =
        Measure([this](cudaStream_t stream, int) { return Schedule(stream); },
                8, false);
    return {"tpa_prefill_schedule", case_.name, timing,
            8.0 * case_.rows.size()};
  }

 private:
  // Pages scattered.
  void MakeTable(int64_t pages) {
    std::vector<int32_t> order(pages);
    std::iota(order.begin(), order.end(), 0);
    uint64_t state = 12345;
    for (int64_t i = pages - 1; i > 0; --i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::swap(order[i], order[(state >> 33) % (i + 1)]);
    }
    table_.assign(case_.rows.size() * table_stride_, 0);
    int64_t next = 0;
    for (size_t row = 0; row < case_.rows.size(); ++row) {
      for (int64_t i = 0; i * 64 < case_.rows[row].length; ++i) {
        table_[row * table_stride_ + i] = order[next++];
      }
    }
  }

  cudaError_t Schedule(cudaStream_t stream) {
    return LaunchTpaPrefillSchedule(
        {device_starts_, device_lengths_, schedule_}, plan_, stream);
  }

  TpaPrefillParams Params(int set) const {
    const TpaShape& s = case_.shape;
    TpaPrefillParams p = {};
    p.shape = s;
    p.cache = {TpaElement::kBFloat16, pages_ + set * page_bytes_,
               layout_.page_elements, device_table_, table_stride_};
    p.a_q = queries_ + set * starts_.back() * query_stride_;
    p.b_q = p.a_q + s.q_rank * s.num_heads;
    p.stride = query_stride_;
    p.position = LrpeType::kRotate;
    p.cos = angles_;
    p.sin = angles_ + starts_.back() * s.head_dim / 2;
    p.out_type = ElementType::kBFloat16;
    p.out = out_;
    p.out_stride = s.num_heads * s.value_dim;
    p.schedule = schedule_;
    p.scratch = scratch_;
    return p;
  }

  // The pages of a row, one after the other.
  std::vector<uint16_t> RowPages(int row) const {
    std::vector<uint16_t> all;
    for (int64_t i = 0; i * 64 < case_.rows[row].length; ++i) {
      const std::vector<uint16_t> one =
          HostCopy(reinterpret_cast<const uint16_t*>(pages_) +
                       table_[row * table_stride_ + i] * layout_.page_elements,
                   layout_.page_elements);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  std::vector<double> Oracle(int row, int query, int64_t head,
                             const std::vector<uint16_t>& pages) const {
    const TpaShape& s = case_.shape;
    const int64_t token = starts_[row] + query;
    const std::vector<float> x =
        HostCopy(queries_ + token * query_stride_, query_stride_);
    const int64_t half = s.head_dim / 2;
    const std::vector<float> cos = HostCopy(angles_ + token * half, half);
    const std::vector<float> sin =
        HostCopy(angles_ + (starts_.back() + token) * half, half);
    std::vector<double> q(s.head_dim, 0.0);
    for (int64_t r = 0; r < s.q_rank; ++r) {
      const double a = x[r * s.num_heads + head];
      const float* b = x.data() + s.q_rank * s.num_heads + r * s.head_dim;
      for (int64_t k = 0; k < half; ++k) {
        q[k] += a * (double{b[k]} * cos[k] - double{b[half + k]} * sin[k]);
        q[half + k] +=
            a * (double{b[k]} * sin[k] + double{b[half + k]} * cos[k]);
      }
    }
    const double scale = 1.0 / (static_cast<double>(s.q_rank * s.kv_rank) *
                                std::sqrt(static_cast<double>(s.head_dim)));
    const int64_t visible =
        case_.rows[row].length - case_.rows[row].queries + query + 1;
    std::vector<double> out(s.value_dim, 0.0);
    std::vector<double> scores(visible);
    for (int64_t t = 0; t < visible; ++t) {
      const uint16_t* page = pages.data() + t / 64 * layout_.page_elements;
      for (int64_t r = 0; r < s.kv_rank; ++r) {
        double dot = 0.0;
        for (int64_t d = 0; d < s.head_dim; ++d) {
          dot += q[d] * ToDouble(page[layout_.BK(t % 64, r, d)]);
        }
        scores[t] += ToDouble(page[layout_.AK(t % 64, r, head)]) * dot * scale;
      }
    }
    const double max = *std::max_element(scores.begin(), scores.end());
    double sum = 0.0;
    for (int64_t t = 0; t < visible; ++t) {
      const uint16_t* page = pages.data() + t / 64 * layout_.page_elements;
      const double weight = std::exp(scores[t] - max);
      sum += weight;
      for (int64_t r = 0; r < s.kv_rank; ++r) {
        const double a = weight * ToDouble(page[layout_.AV(t % 64, r, head)]);
        for (int64_t e = 0; e < s.value_dim; ++e) {
          out[e] += a * ToDouble(page[layout_.BV(t % 64, r, e)]);
        }
      }
    }
    for (double& value : out) value /= sum * static_cast<double>(s.kv_rank);
    return out;
  }

  const Case case_;
  const TpaPageLayout layout_;
  TpaPrefillPlan plan_;
  std::vector<int32_t> starts_;
  std::vector<int32_t> table_;
  int64_t table_stride_ = 1;
  int64_t page_bytes_;
  int64_t query_stride_;
  char* pages_;
  float* queries_;
  float* angles_;
  uint16_t* out_;
  const int32_t* device_table_;
  const int32_t* device_starts_;
  const int32_t* device_lengths_;
  void* schedule_;
  void* scratch_;
};

constexpr TpaShape kSeed = {32, 128, 128, 16, 1};
constexpr TpaShape kRank2 = {32, 128, 128, 16, 2};
constexpr TpaShape kRank4 = {32, 128, 128, 16, 4};
constexpr TpaShape kT6Xl = {78, 64, 64, 6, 2};

std::vector<Case> Cases(bool quick) {
  std::vector<Case> cases;
  for (int32_t n : {2048, 8192, 32768}) {
    const std::string length = " B1 N" + std::to_string(n);
    cases.push_back({"H32 D128 R1" + length, kSeed, {{n, n}}});
    cases.push_back({"H32 D128 R2" + length, kRank2, {{n, n}}});
  }
  if (quick) return cases;
  for (int32_t n : {2048, 8192}) {
    cases.push_back({"H78 D64 R2 B1 N" + std::to_string(n), kT6Xl, {{n, n}}});
  }
  cases.push_back({"H32 D128 R4 B1 N8192", kRank4, {{8192, 8192}}});
  cases.push_back(
      {"H32 D128 R2 B8 N1024", kRank2, std::vector<Row>(8, {1024, 1024})});
  cases.push_back({"H32 D128 R2 4096+2048+1024+16x64",
                   kRank2,
                   {{4096, 4096}, {2048, 2048}, {1024, 1024}}});
  for (int i = 0; i < 16; ++i) cases.back().rows.push_back({64, 64});
  for (int32_t chunk : {256, 2048}) {
    cases.push_back({"H32 D128 R1 " + std::to_string(chunk) + " of 32768",
                     kSeed,
                     {{32768, chunk}}});
  }
  return cases;
}

}  // namespace

std::vector<Result> BenchTpaPrefill(const BenchOptions& options) {
  std::vector<Result> results;
  for (const Case& c : Cases(options.quick)) {
    if (c.name.find(options.shape) == std::string::npos) continue;
    TpaPrefillBench bench(c);
    bench.Check();
    results.push_back(bench.Run());
    if (c.name == "H32 D128 R2 B1 N8192") {
      results.push_back(bench.RunSchedule());
    }
  }
  return results;
}

}  // namespace bench
}  // namespace recurve
