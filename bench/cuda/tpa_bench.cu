// Measures TPA decode.
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "bench/cuda/device_values.h"
#include "bench/cuda/tpa_bench.h"
#include "kernels/tpa/decode/tpa_chunks.h"
#include "kernels/tpa/decode/tpa_schedule.h"
#include "kernels/tpa/tpa_cuda.h"

namespace recurve {
namespace bench {
namespace {

constexpr int64_t kColdBytes = int64_t{320} << 20;  // several times the L2
constexpr double kTolerance = 4e-3;

constexpr TpaDecodeForm kForms[] = {TpaDecodeForm::kParallelB,
                                    TpaDecodeForm::kParallelBh,
                                    TpaDecodeForm::kParallelBn};

constexpr TpaShape kSeed = {32, 128, 128, 16, 1};
constexpr TpaShape kRank2 = {32, 128, 128, 16, 2};
constexpr TpaShape kT6Medium = {47, 64, 64, 6, 2};
constexpr TpaShape kT6Large = {61, 64, 64, 6, 2};
constexpr TpaShape kT6Xl = {78, 64, 64, 6, 2};

struct Case {
  std::string name;
  TpaShape shape;
  std::vector<int32_t> lengths;
  bool contiguous = false;  // pages in order, as without paging
};

Case Uniform(const char* name, const TpaShape& shape, int rows, int length) {
  return {std::string(name) + "B" + std::to_string(rows) + " M" +
              std::to_string(length),
          shape, std::vector<int32_t>(rows, length)};
}

// Caches of several layers with one page table, as in a model, so that each
// call finds a cold cache.
class TpaBench {
 public:
  explicit TpaBench(const Case& c)
      : case_(c),
        rows_(static_cast<int>(c.lengths.size())),
        layout_(c.shape, TpaPageOrder::kOctets) {
    const int32_t longest =
        *std::max_element(c.lengths.begin(), c.lengths.end());
    table_stride_ = (longest + kTpaPageTokens - 1) / kTpaPageTokens;
    int64_t pages = 0;
    for (int32_t length : c.lengths) {
      pages += (length + kTpaPageTokens - 1) / kTpaPageTokens;
    }
    table_ = MakeTable(pages);
    layer_elements_ = (pages + 1) * layout_.page_elements;
    layers_ = std::max<int64_t>(2, (kColdBytes + Bytes() - 1) / Bytes());
    pages_ =
        static_cast<char*>(RandomMemory(layers_ * layer_elements_ * 2, true));
    const TpaShape& s = c.shape;
    a_q_ = 2 * s.kv_rank * s.num_heads;
    b_k_ = a_q_ + s.q_rank * s.num_heads;
    b_v_ = b_k_ + s.kv_rank * s.head_dim;
    b_q_ = b_v_ + s.kv_rank * s.value_dim;
    stride_ = b_q_ + s.q_rank * s.head_dim;
    factors_ = static_cast<float*>(RandomMemory(rows_ * stride_ * 4, false));
    queries_ = RandomMemory(TpaQueryBytes(s, rows_), true);
    angles_ = static_cast<float*>(RandomMemory(rows_ * s.head_dim * 4, false));
    out_elements_ = rows_ * s.num_heads * s.value_dim;
    out_ = static_cast<float*>(RandomMemory(out_elements_ * 4, false));
    device_table_ = DeviceCopy(table_);
    std::vector<int32_t> sequences(rows_);
    std::iota(sequences.begin(), sequences.end(), 0);
    row_sequence_ = DeviceCopy(sequences);
    std::vector<int64_t> last;
    for (int32_t length : c.lengths) last.push_back(length - 1);
    positions_ = DeviceCopy(last);
    RECURVE_CUDA_OK(GetTpaDevice(&device_));
    for (TpaDecodeForm form : kForms) {
      scratch_bytes_ = std::max(scratch_bytes_,
                                TpaDecodeScratchBytes(Params(0), Plan(form)));
    }
    scratch_ = RandomMemory(scratch_bytes_ + 256, false);
    for (TpaDecodeForm form : kForms) {
      schedule_bytes_ = std::max(
          schedule_bytes_, TpaScheduleBytes(Plan(form), rows_, table_stride_));
    }
    schedule_ = RandomMemory(schedule_bytes_, false);
  }
  ~TpaBench() {
    for (const void* memory :
         {static_cast<const void*>(pages_), static_cast<const void*>(factors_),
          static_cast<const void*>(queries_),
          static_cast<const void*>(row_sequence_),
          static_cast<const void*>(positions_),
          static_cast<const void*>(angles_), static_cast<const void*>(out_),
          static_cast<const void*>(device_table_),
          static_cast<const void*>(scratch_),
          static_cast<const void*>(schedule_)}) {
      cudaFree(const_cast<void*>(memory));
    }
  }

  TpaDecodeForm Choice() const {
    const int64_t tokens =
        std::accumulate(case_.lengths.begin(), case_.lengths.end(), int64_t{0});
    return ChooseTpaDecodeForm(case_.shape, rows_, 1, tokens / rows_, device_);
  }

  // One layer: the step's schedule exists.
  Result Run(TpaDecodeForm form, const char* op) {
    const TpaDecodePlan plan = Plan(form);
    Share(plan);
    RECURVE_CUDA_OK(LaunchTpaAppend(Append(0), nullptr));
    const Timing timing = Measure(
        [&](cudaStream_t stream, int call) {
          return LaunchTpaDecode(Params(call % layers_), plan, stream);
        },
        static_cast<int>(std::max<int64_t>(layers_, 8)), true);
    return {op, case_.name, timing, static_cast<double>(Bytes())};
  }

  // One layer with its append, in one launch where possible, or in two; and the
  // append alone.
  Result RunLayer(TpaDecodeForm form, bool together) {
    const TpaDecodePlan plan = Plan(form);
    const bool whole = together && TpaDecodeAppends(case_.shape, plan);
    Share(plan);
    const Timing timing = Measure(
        [&](cudaStream_t stream, int call) {
          const int64_t layer = call % layers_;
          if (whole) return LaunchTpaDecode(Whole(layer), plan, stream);
          const cudaError_t error = LaunchTpaAppend(Append(layer), stream);
          if (error != cudaSuccess) return error;
          return LaunchTpaDecode(Params(layer), plan, stream);
        },
        static_cast<int>(std::max<int64_t>(layers_, 8)), true);
    return {together ? "tpa_layer" : "tpa_layer_apart", case_.name, timing,
            static_cast<double>(Bytes())};
  }
  Result RunAppend() {
    const Timing timing = Measure(
        [&](cudaStream_t stream, int call) {
          return LaunchTpaAppend(Append(call % layers_), stream);
        },
        static_cast<int>(std::max<int64_t>(layers_, 8)), true);
    // Factors and angles are read; pages and queries written.
    const TpaShape& s = case_.shape;
    const auto bytes = static_cast<double>(
        rows_ * (4 * (stride_ + s.head_dim) +
                 2 * s.kv_rank * (2 * s.num_heads + s.head_dim + s.value_dim)) +
        TpaQueryBytes(s, rows_));
    return {"tpa_append", case_.name, timing, bytes};
  }

  // Ends the program unless all forms give the same bits and some heads of the
  // first and last row agree with float64.
  void Check() {
    const std::vector<float> got = Decode(TpaDecodeForm::kParallelBn);
    for (TpaDecodeForm form :
         {TpaDecodeForm::kParallelB, TpaDecodeForm::kParallelBh}) {
      if (std::memcmp(Decode(form).data(), got.data(), got.size() * 4) != 0) {
        std::fprintf(stderr, "%s: %s differs from parallel_bn\n",
                     case_.name.c_str(), Name(form));
        std::exit(1);
      }
    }
    const int64_t heads = case_.shape.num_heads;
    const int64_t dim = case_.shape.value_dim;
    for (int row : {0, rows_ - 1}) {
      const std::vector<uint16_t> pages = RowPages(row);
      for (int64_t head : {int64_t{0}, heads - 1}) {
        const std::vector<double> want = Oracle(row, head, pages);
        const double error =
            RelativeError(got.data() + (row * heads + head) * dim, want);
        if (!(error <= kTolerance)) {
          std::fprintf(stderr, "%s: row %d head %d is wrong by %g\n",
                       case_.name.c_str(), row, static_cast<int>(head), error);
          std::exit(1);
        }
      }
    }
  }

 private:
  int64_t Bytes() const {
    const TpaShape& s = case_.shape;
    int64_t tokens = 0;
    for (int32_t length : case_.lengths) tokens += length;
    return 2 * tokens * s.kv_rank *
           (2 * s.num_heads + s.head_dim + s.value_dim);
  }

  // Pages 1, 2, ... in the order of rows, or scattered.
  std::vector<int32_t> MakeTable(int64_t pages) const {
    std::vector<int32_t> order(pages);
    std::iota(order.begin(), order.end(), 1);
    if (!case_.contiguous) {
      uint64_t state = 12345;
      for (int64_t i = pages - 1; i > 0; --i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        std::swap(order[i], order[(state >> 33) % (i + 1)]);
      }
    }
    std::vector<int32_t> table(rows_ * table_stride_, 0);
    int64_t next = 0;
    for (int row = 0; row < rows_; ++row) {
      for (int64_t i = 0; i * kTpaPageTokens < case_.lengths[row]; ++i) {
        table[row * table_stride_ + i] = order[next++];
      }
    }
    return table;
  }

  TpaDecodePlan Plan(TpaDecodeForm form) const {
    // As the engine (TpaContextsOf), except for one row of many chunks.
    int chunks = 0;
    int most = 0;  // of a row
    for (int32_t length : case_.lengths) {
      chunks += TpaChunkCount(length);
      most = std::max(most, TpaChunkCount(length));
    }
    const bool clusters = form == TpaDecodeForm::kParallelBn &&
                          rows_ <= TpaShortRows(case_.shape, device_) &&
                          most <= kTpaClusterChunks;
    return PlanTpaDecode(
        case_.shape, form, rows_, 1, device_,
        clusters                                       ? TpaContexts::kShort
        : chunks <= TpaFewChunks(case_.shape, device_) ? TpaContexts::kFew
        : chunks > TpaManyChunks(case_.shape, device_) ? TpaContexts::kMany
                                                       : TpaContexts::kAny);
  }

  TpaCudaDecodeParams Params(int64_t layer) const {
    const TpaShape& s = case_.shape;
    TpaCudaDecodeParams p = {};
    p.shape = s;
    p.cache = {TpaElement::kBFloat16, pages_ + layer * layer_elements_ * 2,
               layout_.page_elements, device_table_, table_stride_};
    p.rows = rows_;
    p.new_tokens = 1;
    p.queries = queries_;
    p.fresh_tokens = 1;
    p.out = out_;
    p.out_stride = s.num_heads * s.value_dim;
    p.scratch = scratch_;
    p.scratch_bytes = scratch_bytes_;
    p.schedule = schedule_;
    return p;
  }

  // Factors of each row's last token, all in one piece.
  TpaCudaFactors Factors() const {
    TpaCudaFactors f = {};
    f.a_k = factors_;
    f.a_v = factors_ + a_q_ / 2;
    f.a_q = factors_ + a_q_;
    f.b_k = factors_ + b_k_;
    f.b_v = factors_ + b_v_;
    f.b_q = factors_ + b_q_;
    f.stride = stride_;
    f.query_stride = stride_;
    f.position = LrpeType::kRotate;
    f.cos = angles_;
    f.sin = angles_ + rows_ * case_.shape.head_dim / 2;
    return f;
  }
  TpaCudaAppendParams Append(int64_t layer) const {
    TpaCudaAppendParams p = {};
    p.shape = case_.shape;
    p.cache = Params(layer).cache;
    p.row_sequence = row_sequence_;
    p.positions = positions_;
    p.rows = rows_;
    p.factors = Factors();
    p.queries = queries_;
    p.query_rows = rows_;
    return p;
  }
  // A launch that appends.
  TpaCudaDecodeParams Whole(int64_t layer) const {
    TpaCudaDecodeParams p = Params(layer);
    p.queries = nullptr;
    p.factors = Factors();
    return p;
  }

  // Puts on the device what a step makes once for all its layers.
  void Share(const TpaDecodePlan& plan) {
    std::vector<char> schedule(TpaScheduleBytes(plan, rows_, table_stride_));
    if (!MakeTpaSchedule(
            {case_.lengths.data(), table_.data(), table_stride_, rows_}, plan,
            schedule.data())) {
      std::fprintf(stderr, "%s: no schedule\n", case_.name.c_str());
      std::exit(1);
    }
    RECURVE_CUDA_OK(cudaMemcpy(schedule_, schedule.data(), schedule.size(),
                               cudaMemcpyHostToDevice));
  }

  std::vector<float> Decode(TpaDecodeForm form) {
    RECURVE_CUDA_OK(cudaMemset(out_, 0xff, out_elements_ * 4));
    const TpaDecodePlan plan = Plan(form);
    Share(plan);
    RECURVE_CUDA_OK(LaunchTpaAppend(Append(0), nullptr));
    RECURVE_CUDA_OK(LaunchTpaDecode(Params(0), plan, nullptr));
    RECURVE_CUDA_OK(cudaDeviceSynchronize());
    return HostCopy(out_, out_elements_);
  }

  // The pages of a row, one after the other.
  std::vector<uint16_t> RowPages(int row) const {
    std::vector<uint16_t> all;
    for (int64_t i = 0; i * kTpaPageTokens < case_.lengths[row]; ++i) {
      const int64_t page = table_[row * table_stride_ + i];
      const std::vector<uint16_t> one =
          HostCopy(reinterpret_cast<const uint16_t*>(pages_) +
                       page * layout_.page_elements,
                   layout_.page_elements);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  std::vector<double> Oracle(int row, int64_t head,
                             const std::vector<uint16_t>& pages) const {
    const TpaShape& s = case_.shape;
    const std::vector<float> x = HostCopy(factors_ + row * stride_, stride_);
    const int64_t half = s.head_dim / 2;
    const std::vector<float> cos = HostCopy(angles_ + row * half, half);
    const std::vector<float> sin =
        HostCopy(angles_ + (rows_ + row) * half, half);
    std::vector<double> q(s.head_dim, 0.0);
    for (int64_t r = 0; r < s.q_rank; ++r) {
      const double a = x[a_q_ + r * s.num_heads + head];
      const float* b = x.data() + b_q_ + r * s.head_dim;
      for (int64_t k = 0; k < half; ++k) {
        q[k] += a * (double{b[k]} * cos[k] - double{b[half + k]} * sin[k]);
        q[half + k] +=
            a * (double{b[k]} * sin[k] + double{b[half + k]} * cos[k]);
      }
    }
    const double scale = 1.0 / (static_cast<double>(s.q_rank * s.kv_rank) *
                                std::sqrt(static_cast<double>(s.head_dim)));
    const auto at = [&](int64_t page, int64_t offset) {
      const uint32_t bits = uint32_t{pages[page + offset]} << 16;
      float value;
      std::memcpy(&value, &bits, 4);
      return double{value};
    };
    double max = -INFINITY;
    double sum = 0.0;
    std::vector<double> out(s.value_dim, 0.0);
    for (int64_t token = 0; token < case_.lengths[row]; ++token) {
      const int64_t page = token / kTpaPageTokens * layout_.page_elements;
      const int64_t m = token % kTpaPageTokens;
      double score = 0.0;
      for (int64_t r = 0; r < s.kv_rank; ++r) {
        double dot = 0.0;
        for (int64_t d = 0; d < s.head_dim; ++d) {
          dot += q[d] * at(page, layout_.BK(m, r, d));
        }
        score += at(page, layout_.AK(m, r, head)) * dot * scale;
      }
      if (score > max) {
        const double shrink = std::exp(max - score);
        sum *= shrink;
        for (double& value : out) value *= shrink;
        max = score;
      }
      const double weight = std::exp(score - max);
      sum += weight;
      for (int64_t r = 0; r < s.kv_rank; ++r) {
        const double a = weight * at(page, layout_.AV(m, r, head));
        for (int64_t e = 0; e < s.value_dim; ++e) {
          out[e] += a * at(page, layout_.BV(m, r, e));
        }
      }
    }
    if (sum == 0.0) return out;  // a row without tokens
    for (double& value : out) value /= sum * static_cast<double>(s.kv_rank);
    return out;
  }

  const Case case_;
  const int rows_;
  const TpaPageLayout layout_;
  TpaDevice device_ = {};
  int64_t table_stride_;
  std::vector<int32_t> table_;
  int64_t layer_elements_;
  int64_t layers_;
  // Where a row's factors begin: A_k, A_v, A_q, B_k, B_v, B_q.
  int64_t a_q_;
  int64_t b_k_;
  int64_t b_v_;
  int64_t b_q_;
  int64_t stride_;
  int64_t out_elements_;
  int64_t scratch_bytes_ = 0;
  int64_t schedule_bytes_ = 0;
  char* pages_;
  float* factors_;
  void* queries_;
  float* angles_;
  float* out_;
  const int32_t* device_table_;
  const int32_t* row_sequence_;
  const int64_t* positions_;
  void* scratch_ = nullptr;
  void* schedule_ = nullptr;
};

std::vector<Case> TargetCases() {
  std::vector<Case> cases;
  for (int rows : {32, 8}) {
    for (int length : {256, 2048, 8192, 32768}) {
      cases.push_back(Uniform("H32 D128 R1 ", kSeed, rows, length));
    }
  }
  cases.push_back(Uniform("H32 D128 R2 ", kRank2, 1, 32768));
  cases.push_back(Uniform("H32 D128 R2 ", kRank2, 32, 8192));
  cases.push_back(Uniform("H32 D128 R2 ", kRank2, 32, 32768));
  cases.push_back(Uniform("H78 D64 R2 ", kT6Xl, 1, 2048));
  cases.push_back(Uniform("H78 D64 R2 ", kT6Xl, 8, 2048));
  cases.push_back(Uniform("H78 D64 R2 ", kT6Xl, 32, 2048));
  cases.push_back(Uniform("H78 D64 R2 ", kT6Xl, 128, 2048));
  cases.push_back(Uniform("H78 D64 R2 ", kT6Xl, 256, 2048));
  cases.push_back(Uniform("H78 D64 R2 ", kT6Xl, 32, 32768));
  for (int rows : {1, 32, 256}) {
    cases.push_back(Uniform("H47 D64 R2 ", kT6Medium, rows, 2048));
    cases.push_back(Uniform("H61 D64 R2 ", kT6Large, rows, 2048));
  }
  cases.push_back(Uniform("H32 D128 R1 ", kSeed, 32, 5088));
  // Lengths that are not powers of two.
  for (int length : {1088, 1984, 2112, 3000})
    cases.push_back(Uniform("H78 D64 R2 ", kT6Xl, 32, length));
  cases.push_back(Uniform("H32 D128 R1 ", kSeed, 32, 2112));
  // An incomplete last page, as in nearly all steps.
  for (int rows : {1, 32}) {
    for (int length : {2047, 2049})
      cases.push_back(Uniform("H78 D64 R2 ", kT6Xl, rows, length));
  }
  // Batches as the engine pads them.
  for (int rows : {33, 129}) {
    Case padded = Uniform("H78 D64 R2 ", kT6Xl, rows, 2048);
    padded.lengths.resize(rows == 33 ? 64 : 256, 0);
    padded.name += " of " + std::to_string(padded.lengths.size());
    cases.push_back(padded);
  }
  Case mixed = {"H78 D64 R2 B32 M500-3600", kT6Xl, {}};
  for (int row = 0; row < 32; ++row)
    mixed.lengths.push_back(500 + 100 * (13 * row % 32));
  cases.push_back(mixed);
  Case ragged = {"H32 D128 R1 1x131072+31x1024", kSeed,
                 std::vector<int32_t>(32, 1024)};
  ragged.lengths[11] = 131072;
  cases.push_back(ragged);
  for (int length : {2048, 32768}) {
    Case contiguous = Uniform("H32 D128 R1 ", kSeed, 32, length);
    contiguous.name += " contiguous";
    contiguous.contiguous = true;
    cases.push_back(contiguous);
  }
  return cases;
}

}  // namespace

std::vector<Result> BenchTpa(const BenchOptions& options) {
  std::vector<Result> results;
  for (const Case& c : TargetCases()) {
    if (!options.Wants(c.name)) continue;
    TpaBench bench(c);
    bench.Check();
    results.push_back(bench.Run(bench.Choice(), "tpa_decode"));
    if (!c.contiguous) {
      results.push_back(bench.RunLayer(bench.Choice(), true));
      results.push_back(bench.RunLayer(bench.Choice(), false));
    }
    if (c.lengths.front() == 2048 && !c.contiguous) {
      results.push_back(bench.RunAppend());
    }
  }
  if (options.quick) return results;
  for (int rows : {8, 32}) {
    for (int length = 256; length <= 32768; length *= 2) {
      const Case c = Uniform("H32 D128 R1 ", kSeed, rows, length);
      if (!options.Wants(c.name)) continue;
      TpaBench bench(c);
      bench.Check();
      for (TpaDecodeForm form : kForms) {
        const std::string op = std::string("tpa_") + Name(form);
        results.push_back(bench.Run(form, op.c_str()));
      }
    }
  }
  return results;
}

}  // namespace bench
}  // namespace recurve
