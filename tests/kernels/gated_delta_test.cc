#include "kernels/linear_attn/gated_delta/gated_delta.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "tests/kernels/gated_delta_testing.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/simd_test.h"

namespace recurve {
namespace {

constexpr int64_t kSlotGap = 5;  // elements after each slot and row
constexpr double kDeltaTolerance = 2e-5;

struct DeltaResult {
  std::vector<std::vector<float>> out;    // by sequence: [length, Hv, E]
  std::vector<std::vector<float>> state;  // by sequence: [Hv, D, E]
};

// Runs sequences of one config, in steps of cuts[step][sequence] tokens. Gaps,
// other slots and states of sequences without tokens keep their bits.
DeltaResult RunDelta(const std::vector<const DeltaTokens*>& sequences,
                     const std::vector<std::vector<int64_t>>& cuts,
                     int threads) {
  ThreadPool pool(threads);
  const DeltaTestConfig& c = sequences[0]->config;
  const int64_t size = c.state_elements();
  const int64_t slot_stride = size + kSlotGap;
  const size_t count = sequences.size();
  const auto slot_of = [&](size_t b) { return 2 * (count - b); };
  std::vector<float> states((2 * count + 2) * slot_stride, kNaN);
  for (size_t b = 0; b < count; ++b) {
    std::copy(sequences[b]->state.begin(), sequences[b]->state.end(),
              states.begin() + slot_of(b) * slot_stride);
  }
  DeltaResult result;
  result.out.resize(count);
  std::vector<int64_t> done(count);
  for (const std::vector<int64_t>& cut : cuts) {
    std::vector<float> rows;
    std::vector<int32_t> starts = {0}, slots;
    const int64_t stride = sequences[0]->stride;
    for (size_t b = 0; b < count; ++b) {
      rows.insert(rows.end(), sequences[b]->Row(done[b]),
                  sequences[b]->Row(done[b] + cut[b]));
      starts.push_back(static_cast<int32_t>(rows.size() / stride));
      slots.push_back(static_cast<int32_t>(slot_of(b)));
      done[b] += cut[b];
    }
    std::vector<uint16_t> halves;
    for (float value : rows) halves.push_back(FloatToBFloat16(value));
    const bool wide = c.type == ElementType::kFloat32;
    const auto at = [&](int64_t offset) -> const void* {
      return wide ? static_cast<const void*>(rows.data() + offset)
                  : halves.data() + offset;
    };
    const int64_t out_stride = c.out_elements() + kSlotGap;
    std::vector<float> out(starts.back() * out_stride, kCanary);
    GatedDeltaParams p = DeltaParams(*sequences[0]);
    p.q = at(sequences[0]->q);
    p.k = at(sequences[0]->k);
    p.v = at(sequences[0]->v);
    p.a = at(sequences[0]->a);
    p.b = at(sequences[0]->b);
    p.out = out.data();
    p.out_stride = out_stride;
    p.query_start = starts.data();
    p.sequences = static_cast<int64_t>(count);
    p.states = states.data();
    p.slot_stride = slot_stride;
    p.slots = slots.data();
    std::vector<float> before = states;
    GatedDelta(p, pool);
    for (size_t b = 0; b < count; ++b) {
      for (int32_t row = starts[b]; row < starts[b + 1]; ++row) {
        const float* first = out.data() + row * out_stride;
        result.out[b].insert(result.out[b].end(), first,
                             first + c.out_elements());
        EXPECT_EQ(first[c.out_elements()], kCanary);
      }
      if (cut[b] == 0) continue;
      const int64_t first = slot_of(b) * slot_stride;
      std::copy_n(states.begin() + first, size, before.begin() + first);
    }
    EXPECT_TRUE(SameBits(states, before)) << "another slot changed";
  }
  for (size_t b = 0; b < count; ++b) {
    const auto first = states.begin() + slot_of(b) * slot_stride;
    result.state.emplace_back(first, first + size);
  }
  return result;
}

class GatedDeltaTest : public SimdTest {
 protected:
  static void ExpectOracle(const DeltaTestConfig& config, int64_t length) {
    const DeltaTokens tokens(config, length, 1);
    const DeltaResult got = RunDelta({&tokens}, {{length}}, 2);
    DeltaOracle(tokens).Expect(got.out[0], got.state[0], kDeltaTolerance);
  }
};

TEST_P(GatedDeltaTest, MatchesFloat64InEveryShape) {
  for (const auto& [keys, values, d, e] :
       {std::tuple(1, 1, 1, 1), std::tuple(3, 3, 8, 1), std::tuple(1, 5, 1, 8),
        std::tuple(2, 6, 48, 64), std::tuple(1, 2, 100, 130),
        std::tuple(2, 2, 128, 128)}) {
    for (bool by_channel : {false, true}) {
      SCOPED_TRACE(testing::Message() << keys << ", " << values << " heads "
                                      << d << " x " << e << ' ' << by_channel);
      DeltaTestConfig config;
      config.key_heads = keys;
      config.value_heads = values;
      config.head_dim = d;
      config.value_dim = e;
      config.by_channel = by_channel;
      ExpectOracle(config, 35);
    }
  }
}

TEST_P(GatedDeltaTest, MatchesFloat64AtEveryLength) {
  for (int64_t length : {0, 1, 2, 15, 16, 17, 63, 64, 65, 200}) {
    SCOPED_TRACE(length);
    ExpectOracle(DeltaTestConfig(), length);
  }
}

TEST_P(GatedDeltaTest, EveryGate) {
  for (DeltaDecay decay :
       {DeltaDecay::kLog, DeltaDecay::kSoftplus, DeltaDecay::kSigmoid}) {
    for (DeltaTestGates gates :
         {DeltaTestGates::kUsual, DeltaTestGates::kOpen,
          DeltaTestGates::kForgetful, DeltaTestGates::kStill}) {
      for (bool by_channel : {false, true}) {
        for (float scale : {1.0f, 2.0f}) {
          SCOPED_TRACE(testing::Message() << static_cast<int>(decay) << ' '
                                          << static_cast<int>(gates) << ' '
                                          << by_channel << ' ' << scale);
          DeltaTestConfig config;
          config.decay = decay;
          config.gates = gates;
          config.by_channel = by_channel;
          config.beta_scale = scale;
          config.biased = scale == 1.0f;
          ExpectOracle(config, 40);
        }
      }
    }
  }
}

TEST_P(GatedDeltaTest, BFloat16Inputs) {
  DeltaTestConfig config;
  config.type = ElementType::kBFloat16;
  ExpectOracle(config, 40);
}

// Bit for bit, however prompts are cut and with others in the batch.
TEST_P(GatedDeltaTest, CutsChangeNoBit) {
  DeltaTestConfig config;
  config.value_dim = 75;
  const DeltaTokens tokens(config, 90, 3);
  DeltaTokens other(config, 90, 4);
  const DeltaResult want = RunDelta({&tokens}, {{90}}, 1);
  const std::vector<std::vector<int64_t>> cuts = {
      {0, 1}, {40, 16}, {0, 0}, {49, 1}, {1, 72}};
  const DeltaResult got = RunDelta({&tokens, &other}, cuts, 3);
  EXPECT_TRUE(SameBits(got.out[0], want.out[0]));
  EXPECT_TRUE(SameBits(got.state[0], want.state[0]));
}

RECURVE_INSTANTIATE_SIMD_TEST(GatedDeltaTest);

}  // namespace
}  // namespace recurve
