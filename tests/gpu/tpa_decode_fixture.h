// Shared by tests of TPA decode on the GPU: shapes, and the comparison with
// float64 and of all forms with each other.
#ifndef RECURVE_TESTS_GPU_TPA_DECODE_FIXTURE_H_
#define RECURVE_TESTS_GPU_TPA_DECODE_FIXTURE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/tpa_gpu_testing.h"
#include "tests/testing/compare.h"

namespace recurve {

inline constexpr TpaDecodeForm kForms[] = {TpaDecodeForm::kParallelB,
                                           TpaDecodeForm::kParallelBh,
                                           TpaDecodeForm::kParallelBn};
inline constexpr double kTolerance = 4e-3;
// For one head: weights times A_v are rounded to 16 bits, and in a head with
// few features or much cancellation the error is larger than in a whole query.
inline constexpr double kHeadTolerance = 1e-2;

// {H, D, E, Rq, R}: each kernel instance, odd heads, values narrower and wider
// than keys, sizes that are not multiples of 16, direct queries.
inline constexpr TpaShape kShapes[] = {
    {32, 128, 128, 16, 1}, {78, 64, 64, 6, 2},   {5, 64, 48, 6, 3},
    {1, 32, 256, 1, 1},    {3, 256, 32, 32, 4},  {33, 96, 40, 7, 2},
    {7, 72, 88, 3, 2},     {128, 128, 64, 2, 1}, {17, 40, 8, 5, 1},
    {128, 256, 256, 3, 4}, {12, 64, 128, 0, 2},  {45, 40, 64, 0, 1},
    {96, 64, 128, 8, 2},   {40, 128, 24, 4, 3},  {3, 12, 12, 4, 2},
    {9, 4, 60, 3, 1},      {21, 100, 4, 0, 4},   {2, 252, 132, 5, 3},
    {61, 64, 64, 6, 2},    {41, 64, 64, 5, 1},
};
// A shape with heads as rows (tpa_head_rows.cuh).
inline constexpr TpaShape kHeadRowsShape = {61, 64, 64, 6, 2};

using Sequences = std::vector<std::unique_ptr<TpaSequence>>;

inline std::vector<const TpaSequence*> Pointers(const Sequences& sequences) {
  std::vector<const TpaSequence*> pointers;
  for (const auto& s : sequences) pointers.push_back(s.get());
  return pointers;
}

class TpaGpuTest : public GpuTest {
 protected:
  static Sequences Make(const TpaGpuConfig& config,
                        const std::vector<int>& lengths, int queries = 1) {
    Sequences sequences;
    uint64_t seed = 1;
    for (int length : lengths) {
      sequences.push_back(
          std::make_unique<TpaSequence>(config, length, queries, seed));
      seed += 10;
    }
    return sequences;
  }

  // As Make, with scores so far apart, in every second sequence, that chunks
  // have different reference scores (tpa_softmax.cuh).
  static Sequences MakeFarApart(const TpaGpuConfig& config,
                                const std::vector<int>& lengths) {
    Sequences sequences = Make(config, lengths);
    for (size_t i = 0; i < sequences.size(); i += 2) {
      sequences[i]->ScaleKeys(
          config, 100.0f * static_cast<float>(config.shape.kv_rank));
    }
    return sequences;
  }

  // |got - want| / |want|; 0 if both are zero.
  static double RelativeError(const float* got, const double* want,
                              int64_t count) {
    double error = 0.0;
    double norm = 0.0;
    for (int64_t i = 0; i < count; ++i) {
      error += (got[i] - want[i]) * (got[i] - want[i]);
      norm += want[i] * want[i];
    }
    return error == 0.0 ? 0.0 : std::sqrt(error / norm);
  }

  // A query's whole output, and each head of it.
  static testing::AssertionResult Near(const float* got, const double* want,
                                       const TpaShape& shape) {
    const int64_t width = shape.value_dim;
    const double whole = RelativeError(got, want, shape.num_heads * width);
    if (!(whole <= kTolerance)) {
      return testing::AssertionFailure() << "relative error " << whole;
    }
    for (int64_t h = 0; h < shape.num_heads; ++h) {
      const double error =
          RelativeError(got + h * width, want + h * width, width);
      largest_head_error_ = std::max(largest_head_error_, error);
      if (!(error <= kHeadTolerance)) {
        return testing::AssertionFailure()
               << "relative error " << error << " of head " << h;
      }
    }
    return testing::AssertionSuccess();
  }
  static inline double largest_head_error_ = 0.0;
  void TearDown() override {
    RecordProperty("largest_head_error", std::to_string(largest_head_error_));
  }

  // All forms give the same bits, near the oracle's; returns them.
  static std::vector<float> Check(const TpaGpuConfig& config,
                                  const Sequences& sequences,
                                  bool portable = false) {
    SCOPED_TRACE(Describe(config));
    TpaGpuBatch batch(config, Pointers(sequences));
    if (portable) batch.UsePortableKernel();
    const std::vector<float> got = batch.Decode(TpaDecodeForm::kParallelBn);
    for (TpaDecodeForm form : kForms) {
      EXPECT_TRUE(SameBits(batch.Decode(form), got)) << Name(form);
    }
    const int64_t row = config.shape.num_heads * config.shape.value_dim;
    const int queries = sequences[0]->queries;
    for (size_t b = 0; b < sequences.size(); ++b) {
      const std::vector<double> want = TpaGpuOracle(config, *sequences[b]);
      for (int t = 0; t < queries; ++t) {
        EXPECT_TRUE(Near(got.data() + (b * queries + t) * row,
                         want.data() + t * row, config.shape))
            << "sequence of " << sequences[b]->length << ", query " << t;
        if (HasFailure()) return got;
      }
    }
    return got;
  }
};

}  // namespace recurve

#endif  // RECURVE_TESTS_GPU_TPA_DECODE_FIXTURE_H_
