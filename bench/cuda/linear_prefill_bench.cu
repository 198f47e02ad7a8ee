// Measures causal linear attention over prompts.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "bench/cuda/linear_prefill_bench.h"
#include "kernels/linear_attn/causal/linear_prefill_cuda.h"
#include "kernels/seeds/linear_step/linear_step_cuda.h"

namespace recurve {
namespace bench {
namespace {

constexpr int64_t kColdBytes = int64_t{320} << 20;  // several times the L2

struct Case {
  int64_t batch, heads, dim, length;
  LrpeType position = LrpeType::kNone;
  Activation activation = Activation::kNone;
};

std::string Name(const Case& c) {
  std::string name = "B" + std::to_string(c.batch) + " H" +
                     std::to_string(c.heads) + " D" + std::to_string(c.dim) +
                     " N" + std::to_string(c.length);
  if (c.activation == Activation::kSilu) name += " silu";
  if (c.position == LrpeType::kRotate) name += " rotate";
  if (c.position == LrpeType::kCosine) name += " cosine";
  return name;
}

std::vector<float> ReadBack(const void* data, int64_t count) {
  std::vector<uint16_t> halves(count);
  RECURVE_CUDA_OK(
      cudaMemcpy(halves.data(), data, 2 * count, cudaMemcpyDeviceToHost));
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = uint32_t{halves[i]} << 16;
    memcpy(&values[i], &bits, 4);
  }
  return values;
}

class LinearPrefillBench {
 public:
  explicit LinearPrefillBench(const Case& c)
      : case_(c),
        width_(c.heads * c.dim),
        tokens_(c.batch * c.length),
        state_elements_(c.heads * LrpeOutputDim(c.position, c.dim) * c.dim),
        sets_(std::max<int64_t>(1, kColdBytes / (tokens_ * width_ * 8))) {
    for (void*& memory : memory_) {  // q, k, v and out, each dense
      memory = RandomMemory(sets_ * tokens_ * width_ * 2, true);
    }
    LinearPrefillParams& p = params_;
    p.num_heads = c.heads;
    p.head_dim = p.value_dim = c.dim;
    p.io_type = p.out_type = ElementType::kBFloat16;
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
    p.fresh = DeviceCopy(std::vector<int32_t>(c.batch, 1));
    p.q_activation = p.k_activation = c.activation;
    p.v_activation = Activation::kNone;
    p.position = c.position;
    std::vector<uint64_t> phases(c.dim);
    for (int64_t i = 0; i < c.dim; ++i) {
      phases[i] = static_cast<uint64_t>(std::pow(10000.0, -2.0 * i / c.dim) *
                                        0.15915494309 * 0x1p63) *
                  2;
    }
    p.phase_steps = DeviceCopy(phases);
    p.scale = 1.0f;
    p.decay = DeviceCopy(std::vector<float>(c.heads, 0.99f));
    p.states = static_cast<float*>(
        RandomMemory((c.batch + 1) * state_elements_ * 4, false));
    p.slot_stride = state_elements_;
  }
  ~LinearPrefillBench() {
    for (void* memory : memory_) cudaFree(memory);
    for (const void* memory : {static_cast<const void*>(params_.query_start),
                               static_cast<const void*>(params_.slots),
                               static_cast<const void*>(params_.positions),
                               static_cast<const void*>(params_.fresh),
                               static_cast<const void*>(params_.phase_steps),
                               static_cast<const void*>(params_.decay),
                               static_cast<const void*>(params_.states)}) {
      cudaFree(const_cast<void*>(memory));
    }
  }

  // Ends the program unless the outputs of row 0's first tokens agree with the
  // step kernel's.
  void Check() {
    const int64_t steps = std::min<int64_t>(case_.length, 200);
    LinearPrefillParams params = Params(0);
    const int32_t starts[] = {0, static_cast<int32_t>(steps)};
    params.query_start = DeviceCopy(std::vector<int32_t>(starts, starts + 2));
    params.max_rows = 1;
    RECURVE_CUDA_OK(LaunchLinearPrefill(params, nullptr));
    RECURVE_CUDA_OK(cudaDeviceSynchronize());
    const std::vector<float> got = ReadBack(params.out, steps * width_);
    LinearStepParams p = {};
    p.num_heads = case_.heads;
    p.head_dim = p.value_dim = case_.dim;
    p.io_type = ElementType::kBFloat16;
    p.stride = p.out_stride = width_;
    p.max_rows = 1;
    p.slots = params.slots;
    p.q_activation = p.k_activation = case_.activation;
    p.v_activation = Activation::kNone;
    p.position = case_.position;
    p.phase_steps = params.phase_steps;
    p.scale = 1.0f;
    p.decay = params.decay;
    p.states = params.states;
    p.slot_stride = state_elements_;
    RECURVE_CUDA_OK(
        cudaMemset(params.states + state_elements_, 0, state_elements_ * 4));
    std::vector<int64_t> positions(steps);
    for (int64_t t = 0; t < steps; ++t) positions[t] = t;
    const int64_t* at = DeviceCopy(positions);
    for (int64_t t = 0; t < steps; ++t) {
      const int64_t row = t * width_ * 2;
      p.q = static_cast<const char*>(params.q) + row;
      p.k = static_cast<const char*>(params.k) + row;
      p.v = static_cast<const char*>(params.v) + row;
      p.out = static_cast<char*>(params.out) + row;
      p.positions = at + t;
      RECURVE_CUDA_OK(LaunchLinearStep(p, nullptr));
    }
    RECURVE_CUDA_OK(cudaDeviceSynchronize());
    const std::vector<float> want = ReadBack(params.out, steps * width_);
    double error = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < want.size(); ++i) {
      error += (got[i] - want[i]) * (got[i] - want[i]);
      norm += want[i] * want[i];
    }
    const double relative = std::sqrt(error / norm);
    if (!(relative <= 6e-3)) {  // both are rounded to bfloat16
      std::fprintf(stderr, "linear_prefill %s: relative error %g\n",
                   Name(case_).c_str(), relative);
      std::exit(1);
    }
    cudaFree(const_cast<int32_t*>(params.query_start));
    cudaFree(const_cast<int64_t*>(at));
  }

  Result Run() {
    const Timing timing = Measure(
        [this](cudaStream_t stream, int call) {
          return LaunchLinearPrefill(Params(call % sets_), stream);
        },
        static_cast<int>(std::max<int64_t>(sets_, 2)), sets_ > 1);
    return {"linear_prefill", Name(case_), timing,
            8.0 * tokens_ * width_ + 4.0 * state_elements_ * case_.batch};
  }

 private:
  LinearPrefillParams Params(int64_t set) const {
    const int64_t offset = set * tokens_ * width_ * 2;
    LinearPrefillParams p = params_;
    p.q = static_cast<char*>(memory_[0]) + offset;
    p.k = static_cast<char*>(memory_[1]) + offset;
    p.v = static_cast<char*>(memory_[2]) + offset;
    p.out = static_cast<char*>(memory_[3]) + offset;
    return p;
  }

  Case case_;
  int64_t width_, tokens_, state_elements_, sets_;
  void* memory_[4];
  LinearPrefillParams params_ = {};
};

}  // namespace

std::vector<Result> BenchLinearPrefill(const BenchOptions& options) {
  std::vector<Case> cases;
  for (int64_t n : {2048, 8192, 32768}) cases.push_back({1, 32, 128, n});
  for (int64_t n : {1024, 4096, 16384}) cases.push_back({12, 12, 128, n});
  if (!options.quick) {
    cases.push_back({4, 32, 128, 8192});
    cases.push_back({1, 12, 128, 8192});
    cases.push_back({1, 32, 128, 8192, LrpeType::kRotate, Activation::kSilu});
    cases.push_back({1, 32, 128, 8192, LrpeType::kCosine, Activation::kSilu});
  }
  std::vector<Result> results;
  for (const Case& c : cases) {
    if (!options.Wants(Name(c))) continue;
    LinearPrefillBench bench(c);
    bench.Check();
    results.push_back(bench.Run());
  }
  return results;
}

}  // namespace bench
}  // namespace recurve
