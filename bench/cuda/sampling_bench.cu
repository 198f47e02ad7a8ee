// Measures sampling.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/sampling_bench.h"
#include "kernels/sampling/sampling_cuda.h"

namespace recurve {
namespace bench {
namespace {

constexpr int64_t kVocab = 50304;
constexpr int64_t kMaxRows = 256;
constexpr int64_t kSeen = 500;  // tokens of a sequence, for penalties

struct Kind {
  const char* name;
  float temperature;
  int32_t top_k;
  float top_p;
  bool penalties;
  int32_t num_logprobs;
};
constexpr Kind kKinds[] = {
    {"greedy", 0, 0, 1, false, -1},
    {"temperature 1", 1, 0, 1, false, -1},
    {"top-k 50", 1, 50, 1, false, -1},
    {"top-p 0.95", 1, 0, 0.95f, false, -1},
    {"top-p 0.95, penalties", 1, 0, 0.95f, true, -1},
    {"greedy, 20 log-probabilities", 0, 0, 1, false, 20},
};

std::vector<float> Logits() {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(kMaxRows * kVocab);
  for (float& l : logits) l = normal(random);
  return logits;
}

std::vector<uint32_t> Counts() {
  std::mt19937_64 random(2);
  std::vector<uint32_t> counts(kMaxRows * kVocab);
  for (int64_t row = 0; row < kMaxRows; ++row) {
    for (int64_t i = 0; i < kSeen; ++i) {
      counts[row * kVocab + random() % kVocab] |= kSampleInPrompt;
      ++counts[row * kVocab + random() % kVocab];
    }
  }
  return counts;
}

std::vector<CudaSampleRow> Samples(const Kind& kind) {
  std::mt19937_64 random(3);
  std::vector<CudaSampleRow> samples(kMaxRows);
  for (int64_t i = 0; i < kMaxRows; ++i) {
    CudaSampleRow& row = samples[i];
    row.row = row.slot = static_cast<int32_t>(i);
    if (kind.temperature > 0) {
      row.inverse_temperature = 1.0 / kind.temperature;
      row.uniform = random() >> 11;
    }
    row.repetition_penalty = 1;
    if (kind.penalties) {
      row.penalties = 1;
      row.repetition_penalty = 1.1f;
      row.frequency_penalty = 0.1f;
    }
    row.top_p = kind.top_p;
    row.top_k = kind.top_k;
    row.num_logprobs = kind.num_logprobs;
  }
  return samples;
}

template <typename T>
T* Zeros(int64_t count) {
  return DeviceCopy(std::vector<T>(count));
}

}  // namespace

// All calls draw from the same logits, which are in L2, as when the head has
// just written them.
std::vector<Result> BenchSampling(const BenchOptions& options) {
  CudaSampleParams p = {};
  p.logits = DeviceCopy(Logits());
  p.stride = p.vocab = p.counts_stride = kVocab;
  p.counts = DeviceCopy(Counts());
  p.bias = Zeros<CudaBias>(1);
  p.adjusted = Zeros<float>(kMaxRows * kVocab);
  p.results = Zeros<CudaSampleResult>(kMaxRows);
  p.top = Zeros<CudaTopToken>(kMaxRows * kSampleMaxTop);
  std::vector<int64_t> all_rows = {1, 32, 128};
  if (!options.quick) all_rows = {1, 8, 32, 64, 128, 256};
  std::vector<Result> results;
  for (const Kind& kind : kKinds) {
    CudaSampleRow* const samples = DeviceCopy(Samples(kind));
    p.samples = samples;
    for (const int64_t rows : all_rows) {
      const std::string shape = kind.name + (" x " + std::to_string(rows));
      if (!options.Wants(shape)) continue;
      p.num_samples = rows;
      const Timing timing = Measure(
          [p](cudaStream_t stream, int) { return LaunchSample(p, stream); }, 32,
          false);
      results.push_back({"sampling", shape, timing,
                         4.0 * static_cast<double>(rows * kVocab)});
    }
    RECURVE_CUDA_OK(cudaFree(samples));
  }
  for (const void* memory :
       {static_cast<const void*>(p.logits), static_cast<const void*>(p.counts),
        static_cast<const void*>(p.bias), static_cast<const void*>(p.adjusted),
        static_cast<const void*>(p.results), static_cast<const void*>(p.top)}) {
    RECURVE_CUDA_OK(cudaFree(const_cast<void*>(memory)));
  }
  return results;
}

}  // namespace bench
}  // namespace recurve
