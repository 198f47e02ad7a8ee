// Measures softmax attention.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "bench/cuda/attention_bench.h"
#include "bench/cuda/device_values.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/prefill/attention_prefill_cuda.h"

namespace recurve {
namespace bench {
namespace {

constexpr int kSets = 2;  // of inputs, so that none is in a cache

struct Row {
  int32_t length;
  int32_t queries;
};
struct Case {
  std::string name;
  AttentionShape shape;
  std::vector<Row> rows;
  bool target;
};

// Pages and new tokens of some rows. Queries, keys and values of a token are
// adjacent, as one product writes them.
class AttentionBench {
 public:
  explicit AttentionBench(const Case& c)
      : case_(c), layout_(c.shape, AttentionPageOrder::kOctets) {
    for (const Row& row : c.rows) {
      lengths_.push_back(row.length);
      starts_.push_back(starts_.back() + row.queries);
      table_stride_ =
          std::max<int64_t>(table_stride_, AttentionPages(row.length));
      page_count_ += AttentionPages(row.length);
      context_ += row.length;
      for (int i = 0; i < row.queries; ++i) {
        sequence_.push_back(static_cast<int32_t>(lengths_.size() - 1));
        positions_.push_back(row.length - row.queries + i);
      }
    }
    MakeTable();
    const AttentionShape& s = c.shape;
    page_bytes_ = 2 * page_count_ * layout_.page_elements;
    pages_ = static_cast<char*>(Own(RandomMemory(kSets * page_bytes_, true)));
    stride_ =
        s.num_heads * s.head_dim + s.num_kv_heads * (s.head_dim + s.value_dim);
    in_ = static_cast<float*>(
        Own(RandomMemory(kSets * tokens() * stride_ * 4, false)));
    angles_ = static_cast<float*>(
        Own(RandomMemory(tokens() * s.head_dim * 4, false)));
    out_ = static_cast<uint16_t*>(
        Own(RandomMemory(tokens() * s.num_heads * s.value_dim * 2, true)));
    device_table_ = Copied(table_);
    device_lengths_ = Copied(lengths_);
    device_starts_ = Copied(starts_);
    device_sequence_ = Copied(sequence_);
    device_positions_ = Copied(positions_);
  }
  ~AttentionBench() {
    for (void* memory : owned_) cudaFree(memory);
  }
  AttentionBench(const AttentionBench&) = delete;
  AttentionBench& operator=(const AttentionBench&) = delete;

  // ---- decode: one token a row ----

  std::vector<Result> RunDecode() {
    AttentionDevice device = {};
    RECURVE_CUDA_OK(GetAttentionDevice(&device));
    plan_ = PlanAttention(case_.shape, WeightType::kBFloat16, device);
    const int rows = static_cast<int>(tokens());
    std::vector<char> schedule(AttentionScheduleParts(plan_, rows).bytes);
    if (!MakeAttentionSchedule(
            {lengths_.data(), nullptr, rows, table_.data(), table_stride_},
            plan_, schedule.data())) {
      std::fprintf(stderr, "attention %s: no schedule\n", case_.name.c_str());
      std::exit(1);
    }
    schedule_ = Copied(schedule);
    scratch_bytes_ = AttentionScratchBytes(plan_, rows, table_stride_);
    scratch_ = Own(RandomMemory(scratch_bytes_, false));
    queries_ = Own(RandomMemory(
        kSets * AttentionQueryBytes(case_.shape, WeightType::kBFloat16, rows),
        true));
    for (int set = 0; set < kSets; ++set) {
      RECURVE_CUDA_OK(Append(nullptr, set));
    }
    RECURVE_CUDA_OK(Decode(nullptr, 0));
    Check("attention", 4e-3);
    const AttentionShape& s = case_.shape;
    const double bytes =
        2.0 * context_ * s.num_kv_heads * (s.head_dim + s.value_dim) +
        rows * s.num_heads * (4.0 * s.head_dim + 2.0 * s.value_dim);
    std::vector<Result> results;
    results.push_back(
        {"attention", case_.name,
         Measure([this](cudaStream_t stream,
                        int call) { return Decode(stream, call % kSets); },
                 kSets, true),
         bytes});
    results.push_back({"attention_layer", case_.name,
                       Measure(
                           [this](cudaStream_t stream, int call) {
                             const cudaError_t error =
                                 Append(stream, call % kSets);
                             return error == cudaSuccess
                                        ? Decode(stream, call % kSets)
                                        : error;
                           },
                           kSets, true),
                       bytes + 4.0 * rows * stride_});
    return results;
  }

  // ---- prefill ----

  std::vector<Result> RunPrefill() {
    prefill_ =
        PlanAttentionPrefill(case_.shape, WeightType::kBFloat16,
                             {static_cast<int>(case_.rows.size()), tokens()});
    schedule_ =
        static_cast<char*>(Own(RandomMemory(prefill_.schedule_bytes, false)));
    scratch_ = Own(RandomMemory(prefill_.scratch_bytes, false));
    RECURVE_CUDA_OK(LaunchAttentionPrefillSchedule(
        {device_starts_, device_lengths_, nullptr, schedule_}, prefill_,
        nullptr));
    RECURVE_CUDA_OK(Prefill(nullptr, 0));
    Check("attention_prefill", 1e-2);
    const AttentionShape& s = case_.shape;
    double pairs = 0.0;  // of a query and a token that it sees
    for (const Row& row : case_.rows) {
      pairs += row.queries * (row.length - 0.5 * row.queries);
    }
    const double flops = 2.0 * pairs * s.num_heads * (s.head_dim + s.value_dim);
    const double bytes =
        2.0 * context_ * s.num_kv_heads * (s.head_dim + s.value_dim) +
        tokens() * s.num_heads * (4.0 * s.head_dim + 2.0 * s.value_dim);
    return {{"attention_prefill", case_.name,
             Measure([this](cudaStream_t stream,
                            int call) { return Prefill(stream, call % kSets); },
                     kSets, true),
             bytes, flops}};
  }

 private:
  void* Own(void* memory) {
    owned_.push_back(memory);
    return memory;
  }
  template <typename T>
  T* Copied(const std::vector<T>& host) {
    return static_cast<T*>(Own(DeviceCopy(host)));
  }
  int64_t tokens() const { return starts_.back(); }

  // Pages scattered.
  void MakeTable() {
    std::vector<int32_t> order(page_count_);
    std::iota(order.begin(), order.end(), 0);
    uint64_t state = 12345;
    for (int64_t i = page_count_ - 1; i > 0; --i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::swap(order[i], order[(state >> 33) % (i + 1)]);
    }
    table_.assign(case_.rows.size() * table_stride_, 0);
    int64_t next = 0;
    for (size_t row = 0; row < case_.rows.size(); ++row) {
      for (int i = 0; i < AttentionPages(case_.rows[row].length); ++i) {
        table_[row * table_stride_ + i] = order[next++];
      }
    }
  }

  float Scale() const {
    return 1.0f / std::sqrt(static_cast<float>(case_.shape.head_dim));
  }
  AttentionCudaCache Cache(int set) const {
    return {WeightType::kBFloat16, pages_ + set * page_bytes_,
            layout_.page_elements, device_table_, table_stride_};
  }
  AttentionCudaPosition Position() const {
    return {LrpeType::kRotate, angles_,
            angles_ + tokens() * case_.shape.head_dim / 2};
  }
  AttentionCudaOutput Out() const {
    return {WeightType::kBFloat16, out_,
            case_.shape.num_heads * case_.shape.value_dim, nullptr, 0};
  }
  const float* In(int set) const { return in_ + set * tokens() * stride_; }
  char* Queries(int set) const {
    return static_cast<char*>(queries_) +
           set * AttentionQueryBytes(case_.shape, WeightType::kBFloat16,
                                     tokens());
  }

  cudaError_t Append(cudaStream_t stream, int set) const {
    const AttentionShape& s = case_.shape;
    AttentionCudaAppendParams p = {};
    p.shape = s;
    p.cache = Cache(set);
    p.row_sequence = device_sequence_;
    p.positions = device_positions_;
    p.rows = static_cast<int>(tokens());
    p.k = In(set) + s.num_heads * s.head_dim;
    p.v = p.k + s.num_kv_heads * s.head_dim;
    p.stride = stride_;
    p.position = Position();
    p.q = In(set);
    p.query_stride = stride_;
    p.scale = Scale();
    p.queries = Queries(set);
    p.query_rows = p.rows;
    return LaunchAttentionAppend(p, stream);
  }
  cudaError_t Decode(cudaStream_t stream, int set) const {
    AttentionCudaDecodeParams p = {};
    p.shape = case_.shape;
    p.cache = Cache(set);
    p.rows = static_cast<int>(tokens());
    p.queries = Queries(set);
    p.fresh_tokens = 1;
    p.out = Out();
    p.schedule = schedule_;
    p.scratch = scratch_;
    p.scratch_bytes = scratch_bytes_;
    return LaunchAttentionDecode(p, plan_, stream);
  }
  cudaError_t Prefill(cudaStream_t stream, int set) const {
    AttentionPrefillParams p = {};
    p.shape = case_.shape;
    p.cache = Cache(set);
    p.q = In(set);
    p.stride = stride_;
    p.position = Position();
    p.scale = Scale();
    p.out = Out();
    p.schedule = schedule_;
    p.scratch = scratch_;
    return LaunchAttentionPrefill(p, prefill_, stream);
  }

  // Ends the program unless some queries of some heads agree with float64.
  void Check(const char* op, double tolerance) const {
    RECURVE_CUDA_OK(cudaDeviceSynchronize());
    const AttentionShape& s = case_.shape;
    for (int row : {0, static_cast<int>(case_.rows.size()) - 1}) {
      const int last = case_.rows[row].queries - 1;
      for (int query : {0, last / 3, last}) {
        for (int64_t head : {int64_t{0}, s.num_heads - 1}) {
          const std::vector<double> want = Oracle(row, query, head);
          const std::vector<uint16_t> got =
              HostCopy(out_ + ((starts_[row] + query) * s.num_heads + head) *
                                  s.value_dim,
                       s.value_dim);
          const double error = RelativeError(got.data(), want);
          if (!(error <= tolerance)) {
            std::fprintf(
                stderr, "%s %s: row %d query %d head %d is wrong by %g\n", op,
                case_.name.c_str(), row, query, static_cast<int>(head), error);
            std::exit(1);
          }
        }
      }
    }
  }

  std::vector<double> Oracle(int row, int query, int64_t head) const {
    const AttentionShape& s = case_.shape;
    const int64_t token = starts_[row] + query;
    const int64_t g = head / AttentionGroup(s);
    const std::vector<float> x =
        HostCopy(in_ + token * stride_ + head * s.head_dim, s.head_dim);
    const int64_t half = s.head_dim / 2;
    const std::vector<float> cos = HostCopy(angles_ + token * half, half);
    const std::vector<float> sin =
        HostCopy(angles_ + (tokens() + token) * half, half);
    std::vector<double> q(s.head_dim);
    for (int64_t k = 0; k < half; ++k) {
      q[k] = double{x[k]} * cos[k] - double{x[half + k]} * sin[k];
      q[half + k] = double{x[k]} * sin[k] + double{x[half + k]} * cos[k];
    }
    const int visible =
        case_.rows[row].length - case_.rows[row].queries + query + 1;
    std::vector<double> out(s.value_dim, 0.0);
    double max = -1e300;
    double sum = 0.0;
    for (int page = 0; page < AttentionPages(visible); ++page) {
      // Keys and values of this head.
      const std::vector<uint16_t> block = HostCopy(
          reinterpret_cast<const uint16_t*>(pages_) +
              table_[row * table_stride_ + page] * layout_.page_elements +
              g * layout_.block,
          layout_.block);
      for (int m = 0; m < std::min(64, visible - 64 * page); ++m) {
        double score = 0.0;
        for (int64_t d = 0; d < s.head_dim; ++d) {
          score += q[d] * ToDouble(block[layout_.K(m, 0, d)]);
        }
        score *= Scale();
        const double top = std::max(max, score);
        const double keep = std::exp(max - top);
        const double weight = std::exp(score - top);
        sum = sum * keep + weight;
        for (int64_t e = 0; e < s.value_dim; ++e) {
          out[e] = out[e] * keep + weight * ToDouble(block[layout_.V(m, 0, e)]);
        }
        max = top;
      }
    }
    for (double& value : out) value /= sum;
    return out;
  }

  const Case case_;
  const AttentionPageLayout layout_;
  std::vector<void*> owned_;
  std::vector<int32_t> lengths_;
  std::vector<int32_t> starts_ = {0};
  std::vector<int32_t> sequence_;   // of each token
  std::vector<int64_t> positions_;  // likewise
  std::vector<int32_t> table_;
  int64_t table_stride_ = 1;
  int64_t page_count_ = 0;
  int64_t context_ = 0;  // tokens of all rows
  int64_t page_bytes_ = 0;
  int64_t stride_ = 0;
  char* pages_ = nullptr;
  float* in_ = nullptr;
  float* angles_ = nullptr;
  uint16_t* out_ = nullptr;
  int32_t* device_table_ = nullptr;
  int32_t* device_lengths_ = nullptr;
  int32_t* device_starts_ = nullptr;
  int32_t* device_sequence_ = nullptr;
  int64_t* device_positions_ = nullptr;
  AttentionPlan plan_ = {};
  AttentionPrefillPlan prefill_ = {};
  char* schedule_ = nullptr;
  void* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
  void* queries_ = nullptr;
};

constexpr AttentionShape kQuarter256 = {16, 4, 256, 256};
constexpr AttentionShape kQuarter128 = {32, 8, 128, 128};
constexpr AttentionShape kWhole128 = {30, 30, 128, 128};
constexpr AttentionShape kSingle128 = {16, 1, 128, 128};
constexpr AttentionShape kQuarter64 = {32, 8, 64, 64};

std::vector<Case> DecodeCases() {
  std::vector<Case> cases;
  const auto add = [&](const char* name, const AttentionShape& shape, int batch,
                       int32_t length, bool target) {
    cases.push_back({std::string(name) + " B" + std::to_string(batch) + " M" +
                         std::to_string(length),
                     shape, std::vector<Row>(batch, {length, 1}), target});
  };
  for (int batch : {1, 8, 32}) {
    for (int32_t length : {2048, 8192, 32768}) {
      add("H16 G4 D256", kQuarter256, batch, length, true);
    }
  }
  add("H16 G4 D256", kQuarter256, 128, 2048, false);
  for (int batch : {1, 8, 32}) {
    add("H32 G8 D128", kQuarter128, batch, 8192, false);
    add("H30 G30 D128", kWhole128, batch, 4096, false);
    add("H16 G1 D128", kSingle128, batch, 8192, false);
    add("H32 G8 D64", kQuarter64, batch, 8192, false);
  }
  Case ragged = {"H16 G4 D256 B32 ragged", kQuarter256, {}, false};
  for (int i = 0; i < 32; ++i) {
    ragged.rows.push_back({100 + 37 * i * i % 16000, 1});
  }
  cases.push_back(ragged);
  return cases;
}

std::vector<Case> PrefillCases() {
  std::vector<Case> cases;
  for (int32_t n : {2048, 8192, 32768}) {
    const std::string length = " B1 N" + std::to_string(n);
    cases.push_back({"H16 G4 D256" + length, kQuarter256, {{n, n}}, true});
    cases.push_back({"H32 G8 D128" + length, kQuarter128, {{n, n}}, true});
  }
  cases.push_back({"H30 G30 D128 B1 N8192", kWhole128, {{8192, 8192}}, false});
  cases.push_back({"H32 G8 D64 B1 N8192", kQuarter64, {{8192, 8192}}, false});
  cases.push_back({"H16 G4 D256 B8 N1024", kQuarter256,
                   std::vector<Row>(8, {1024, 1024}), false});
  for (int32_t chunk : {256, 2048}) {
    cases.push_back({"H16 G4 D256 " + std::to_string(chunk) + " of 32768",
                     kQuarter256,
                     {{32768, chunk}},
                     false});
  }
  return cases;
}

}  // namespace

std::vector<Result> BenchAttention(const BenchOptions& options) {
  std::vector<Result> results;
  const auto run = [&](const std::vector<Case>& cases, bool prefill) {
    for (const Case& c : cases) {
      if (!options.Wants(c.name) || (options.quick && !c.target)) continue;
      AttentionBench bench(c);
      const std::vector<Result> more =
          prefill ? bench.RunPrefill() : bench.RunDecode();
      results.insert(results.end(), more.begin(), more.end());
    }
  };
  run(DecodeCases(), false);
  run(PrefillCases(), true);
  return results;
}

}  // namespace bench
}  // namespace recurve
