// Measures non-causal linear attention.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "bench/cuda/linear_noncausal_bench.h"
#include "kernels/linear_attn/noncausal/linear_noncausal_cuda.h"
#include "kernels/seeds/linear_noncausal/linear_noncausal_seed_cuda.h"

namespace recurve {
namespace bench {
namespace {

constexpr int64_t kColdBytes = int64_t{320} << 20;  // several times the L2
constexpr int64_t kDim = 128;

struct Case {
  int64_t batch, heads, length;
  Activation q = Activation::kNone;
  Activation k = Activation::kNone;
  Activation g = Activation::kNone;
  LrpeType position = LrpeType::kNone;
};

std::string Name(const Case& c) {
  std::string name = "B" + std::to_string(c.batch) + " H" +
                     std::to_string(c.heads) + " D128 N" +
                     std::to_string(c.length);
  if (c.q == Activation::kSilu) name += " silu";
  if (c.q == Activation::kSoftmax) name += " q-softmax";
  if (c.position == LrpeType::kCosine) name += " cosine";
  return name;
}

double Activated(Activation activation, double x) {
  return activation == Activation::kSilu ? x / (1.0 + std::exp(-x)) : x;
}

class LinearNoncausalBench {
 public:
  explicit LinearNoncausalBench(const Case& c)
      : case_(c),
        width_(c.heads * kDim),
        tokens_(c.batch * c.length),
        sets_(std::max<int64_t>(1, kColdBytes / (tokens_ * width_ * 10))) {
    for (void*& memory : memory_) {  // q, k, v, g and out, each dense
      memory = RandomMemory(sets_ * tokens_ * width_ * 2, true);
    }
    LinearNoncausalParams& p = params_;
    p.num_heads = c.heads;
    p.head_dim = p.value_dim = kDim;
    p.stride = p.out_stride = width_;
    std::vector<int32_t> starts, slots;
    for (int64_t b = 0; b <= c.batch; ++b) {
      starts.push_back(static_cast<int32_t>(b * c.length));
      slots.push_back(static_cast<int32_t>(1 + b));
    }
    p.query_start = DeviceCopy(starts);
    p.max_rows = c.batch;
    p.slots = DeviceCopy(slots);
    p.positions = DeviceCopy(std::vector<int64_t>(c.batch, 0));
    p.q_activation = c.q;
    p.k_activation = c.k;
    p.g_activation = c.g;
    p.position = c.position;
    std::vector<uint64_t> phases(kDim);
    for (int64_t i = 0; i < kDim; ++i) {
      phases[i] = static_cast<uint64_t>(Theta(i) * 0.15915494309 * 0x1p63) * 2;
    }
    p.phase_steps = DeviceCopy(phases);
    p.scale = 1.0f;
    p.slot_stride = c.heads * 2 * kDim * kDim;
    p.states = static_cast<float*>(
        RandomMemory((c.batch + 1) * p.slot_stride * 4, false));
    const int64_t workspace = LinearNoncausalWorkspaceBytes(p);
    RECURVE_CUDA_OK(cudaMalloc(&p.workspace, workspace));
    RECURVE_CUDA_OK(cudaMemset(p.workspace, 0, workspace));
  }
  ~LinearNoncausalBench() {
    for (void* memory : memory_) cudaFree(memory);
    cudaFree(params_.workspace);
    for (const void* memory : {static_cast<const void*>(params_.query_start),
                               static_cast<const void*>(params_.slots),
                               static_cast<const void*>(params_.positions),
                               static_cast<const void*>(params_.phase_steps),
                               static_cast<const void*>(params_.states)}) {
      cudaFree(const_cast<void*>(memory));
    }
  }

  // Ends the program unless head 0 of row 0 is right.
  void Check() {
    RECURVE_CUDA_OK(LaunchLinearNoncausalSeed(Params(0), nullptr));
    RECURVE_CUDA_OK(cudaDeviceSynchronize());
    const auto q = Encoded(memory_[0], case_.q);
    const auto k = Encoded(memory_[1], case_.k);
    const std::vector<float> v = Head(memory_[2]);
    const std::vector<float> g = Head(memory_[3]);
    const std::vector<float> got = Head(memory_[4]);
    const int64_t dk = static_cast<int64_t>(q.size()) / case_.length;
    std::vector<double> s(dk * kDim);
    for (int64_t t = 0; t < case_.length; ++t) {
      for (int64_t r = 0; r < dk; ++r) {
        for (int64_t j = 0; j < kDim; ++j) {
          s[r * kDim + j] += k[t * dk + r] * v[t * kDim + j];
        }
      }
    }
    double error = 0.0;
    double norm = 0.0;
    for (int64_t t = 0; t < case_.length; ++t) {
      std::vector<double> out(kDim);
      for (int64_t r = 0; r < dk; ++r) {
        for (int64_t j = 0; j < kDim; ++j) {
          out[j] += q[t * dk + r] * s[r * kDim + j];
        }
      }
      for (int64_t j = 0; j < kDim; ++j) {
        const double want = out[j] * Activated(case_.g, g[t * kDim + j]);
        error += (got[t * kDim + j] - want) * (got[t * kDim + j] - want);
        norm += want * want;
      }
    }
    const double relative = std::sqrt(error / norm);
    if (!(relative <= 4e-3)) {
      std::fprintf(stderr, "linear_noncausal %s: relative error %g\n",
                   Name(case_).c_str(), relative);
      std::exit(1);
    }
  }

  Result Run() {
    const Timing timing = Measure(
        [this](cudaStream_t stream, int call) {
          return LaunchLinearNoncausalSeed(Params(call % sets_), stream);
        },
        static_cast<int>(std::max<int64_t>(sets_, 2)), sets_ > 1);
    const int64_t state =
        case_.heads * kDim * LrpeOutputDim(case_.position, kDim);
    return {"linear_noncausal", Name(case_), timing,
            10.0 * tokens_ * width_ + 4.0 * state * case_.batch};
  }

 private:
  static double Theta(int64_t i) {
    return std::pow(10000.0, -2.0 * static_cast<double>(i) / kDim);
  }
  LinearNoncausalParams Params(int64_t set) const {
    const int64_t offset = set * tokens_ * width_ * 2;
    LinearNoncausalParams p = params_;
    p.q = static_cast<char*>(memory_[0]) + offset;
    p.k = static_cast<char*>(memory_[1]) + offset;
    p.v = static_cast<char*>(memory_[2]) + offset;
    p.g = static_cast<char*>(memory_[3]) + offset;
    p.out_type = ElementType::kBFloat16;
    p.out = static_cast<char*>(memory_[4]) + offset;
    return p;
  }
  // Head 0 of row 0, [length, kDim].
  std::vector<float> Head(const void* data) const {
    std::vector<uint16_t> halves(case_.length * kDim);
    RECURVE_CUDA_OK(cudaMemcpy2D(halves.data(), kDim * 2, data, width_ * 2,
                                 kDim * 2, case_.length,
                                 cudaMemcpyDeviceToHost));
    std::vector<float> values(halves.size());
    for (size_t i = 0; i < halves.size(); ++i) {
      const uint32_t bits = uint32_t{halves[i]} << 16;
      std::memcpy(&values[i], &bits, 4);
    }
    return values;
  }
  std::vector<double> Encoded(const void* data, Activation activation) const {
    const std::vector<float> x = Head(data);
    const int64_t dk = LrpeOutputDim(case_.position, kDim);
    std::vector<double> y(case_.length * dk);
    for (int64_t t = 0; t < case_.length; ++t) {
      double sum = 0.0;
      for (int64_t i = 0; i < kDim; ++i) sum += std::exp(x[t * kDim + i]);
      for (int64_t i = 0; i < kDim; ++i) {
        const double a = activation == Activation::kSoftmax
                             ? std::exp(x[t * kDim + i]) / sum
                             : Activated(activation, x[t * kDim + i]);
        if (dk == kDim) {
          y[t * dk + i] = a;
        } else {
          const double angle = static_cast<double>(t) * Theta(i);
          y[t * dk + i] = a * std::cos(angle);
          y[t * dk + kDim + i] = a * std::sin(angle);
        }
      }
    }
    return y;
  }

  Case case_;
  int64_t width_, tokens_, sets_;
  void* memory_[5];
  LinearNoncausalParams params_ = {};
};

}  // namespace

std::vector<Result> BenchLinearNoncausal(const BenchOptions& options) {
  constexpr Activation silu = Activation::kSilu;
  std::vector<Case> cases;
  for (int64_t n : {1024, 8192, 32768}) {
    cases.push_back({12, 12, n});
    cases.push_back({12, 12, n, silu, silu, silu, LrpeType::kCosine});
    cases.push_back(
        {12, 12, n, Activation::kSoftmax, silu, silu, LrpeType::kCosine});
  }
  // Fewer heads than multiprocessors, as a server's prompts have.
  for (int64_t n : {512, 2048, 8192}) {
    cases.push_back({1, 16, n});
    cases.push_back({1, 32, n});
  }
  std::vector<Result> results;
  for (const Case& c : cases) {
    if (!options.Wants(Name(c))) continue;
    Case small = c;
    small.batch = 2;
    small.length = 1000;
    LinearNoncausalBench(small).Check();
    results.push_back(LinearNoncausalBench(c).Run());
  }
  return results;
}

}  // namespace bench
}  // namespace recurve
