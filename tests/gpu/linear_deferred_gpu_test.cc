// The deferred step of linear attention on the GPU against float64 and itself.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/random.h"
#include "kernels/linear_attn/step/linear_deferred_cuda.h"
#include "tests/gpu/linear_gpu_testing.h"
#include "tests/testing/compare.h"

namespace recurve {
namespace {

constexpr int64_t kGap = 8;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// A sequence whose state covers `first` tokens, where its last prompt ended.
struct Sequence {
  int64_t id;
  int64_t first;
};

// Sequences in slots whose rings, like all memory that nothing may read, are
// NaN. LinearToken and LinearFirstState say what they hold.
class DeferredBatch {
 public:
  DeferredBatch(const LinearGpuConfig& config, std::vector<Sequence> sequences)
      : config_(config),
        sequences_(std::move(sequences)),
        done_(sequences_.size(), 0),
        outs_(sequences_.size()),
        slot_stride_(config.state_elements() + Ring() + kGap),
        slots_(Slots()) {}

  // The next count[i] tokens of each sequence, in one launch.
  void Run(const std::vector<int64_t>& counts, bool early = false) {
    const LinearGpuConfig& c = config_;
    const int64_t stride = c.token_elements() + kGap;
    const int64_t out_stride = c.heads * c.value_dim + kGap;
    const int64_t angles = LrpeAngles(c.position, c.head_dim);
    const std::vector<double> theta =
        LrpeTheta(c.position, c.head_dim, c.base(0));
    std::vector<float> rows, cos, sin;
    std::vector<int32_t> query_start = {0}, slots;
    std::vector<int64_t> positions, prompt_ends;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      positions.push_back(sequences_[i].first + done_[i]);
      prompt_ends.push_back(sequences_[i].first);
      slots.push_back(Slot(i));
      for (int64_t t = 0; t < counts[i]; ++t) {
        const std::vector<float> token =
            LinearToken(TokensOf(i), sequences_[i].id, done_[i] + t);
        rows.insert(rows.end(), token.begin(), token.end());
        rows.insert(rows.end(), kGap, kNaN);
        for (int64_t k = 0; k < angles; ++k) {
          const double angle =
              static_cast<double>(positions.back() + t) * theta[k];
          cos.push_back(static_cast<float>(std::cos(angle)));
          sin.push_back(static_cast<float>(std::sin(angle)));
        }
      }
      query_start.push_back(query_start.back() +
                            static_cast<int32_t>(counts[i]));
    }
    // Two rows of the sink.
    positions.push_back(-1);
    prompt_ends.push_back(0);
    slots.push_back(0);
    query_start.push_back(query_start.back() + 2);
    rows.insert(rows.end(), 2 * stride, kNaN);
    cos.insert(cos.end(), 2 * angles + 1, kNaN);
    sin.insert(sin.end(), 2 * angles + 1, kNaN);
    DeviceBuffer<float> rows_on(rows), cos_on(cos), sin_on(sin),
        out(std::vector<float>(query_start.back() * out_stride, 7.0f)),
        decay(c.Decay());
    DeviceBuffer<int32_t> query_on(query_start), slots_on(slots);
    DeviceBuffer<int64_t> positions_on(positions), ends_on(prompt_ends);
    LinearDeferredParams params = {};
    LinearAttentionParams& p = params.of;
    p.num_heads = c.heads;
    p.head_dim = c.head_dim;
    p.value_dim = c.value_dim;
    p.q = rows_on.data();
    p.k = p.q + c.heads * c.head_dim;
    p.v = p.k + c.heads * c.head_dim;
    p.stride = p.v_stride = stride;
    p.out = out.data();
    p.out_stride = out_stride;
    p.query_start = query_on.data();
    p.sequences = static_cast<int64_t>(slots.size());
    p.q_activation = c.q_activation;
    p.k_activation = c.k_activation;
    p.v_activation = c.v_activation;
    p.position = c.position;
    p.cos = cos_on.data();
    p.sin = sin_on.data();
    p.decay = decay.data();
    p.states = slots_.data();
    p.slot_stride = slot_stride_;
    p.slots = slots_on.data();
    params.positions = positions_on.data();
    params.prompt_ends = ends_on.data();
    params.rings = slots_.data() + c.state_elements();
    std::vector<float> sink = slots_.Read();
    sink.resize(slot_stride_);
    ASSERT_EQ(LaunchLinearDeferred(params, early, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<float> got = out.Read();
    for (size_t i = 0; i < sequences_.size(); ++i) {
      for (int64_t t = 0; t < counts[i]; ++t) {
        const auto row = got.begin() + (query_start[i] + t) * out_stride;
        outs_[i].insert(outs_[i].end(), row, row + out_stride - kGap);
        ASSERT_EQ(row[out_stride - kGap], 7.0f) << "a gap changed";
      }
      done_[i] += counts[i];
    }
    for (int64_t t = 0; t < 2; ++t) {
      const auto row =
          got.begin() + (query_start[sequences_.size()] + t) * out_stride;
      for (int64_t j = 0; j < out_stride - kGap; ++j) ASSERT_EQ(row[j], 0.0f);
    }
    const std::vector<float> after = slots_.Read();
    ASSERT_TRUE(SameBits(sink, absl::MakeConstSpan(after).first(slot_stride_)));
    params_ = params;  // for Fold, which reads no rows
  }

  // The state of a sequence with all its tokens.
  std::vector<float> FoldedState(size_t i) {
    std::vector<int64_t> positions, prompt_ends;
    std::vector<int32_t> slots;
    for (size_t j = 0; j < sequences_.size(); ++j) {
      positions.push_back(sequences_[j].first + done_[j]);
      prompt_ends.push_back(sequences_[j].first);
      slots.push_back(Slot(j));
    }
    DeviceBuffer<int64_t> positions_on(positions), ends_on(prompt_ends);
    DeviceBuffer<int32_t> slots_on(slots);
    DeviceBuffer<float> copy(slots_.Read()), decay(config_.Decay());
    LinearDeferredParams params = params_;
    params.of.sequences = static_cast<int64_t>(slots.size());
    params.of.slots = slots_on.data();
    params.of.states = copy.data();
    params.of.decay = decay.data();
    params.rings = copy.data() + config_.state_elements();
    params.positions = positions_on.data();
    params.prompt_ends = ends_on.data();
    EXPECT_EQ(LaunchLinearFold(params, nullptr), cudaSuccess);
    const std::vector<float> all = copy.Read();
    const auto state = all.begin() + Slot(i) * slot_stride_;
    return {state, state + config_.state_elements()};
  }
  // The outputs of all its tokens so far, [tokens, H, E].
  const std::vector<float>& outs(size_t i) const { return outs_[i]; }
  LinearGpuConfig TokensOf(size_t i) const {
    LinearGpuConfig c = config_;
    c.first_position = sequences_[i].first;
    return c;
  }
  const LinearDeferredParams& params() const { return params_; }

 private:
  int64_t Ring() const {
    return LinearRingElements(config_.heads, config_.key_dim(),
                              config_.value_dim);
  }
  int32_t Slot(size_t i) const {
    return static_cast<int32_t>(2 * (sequences_.size() - i));
  }
  std::vector<float> Slots() const {
    std::vector<float> all((2 * sequences_.size() + 2) * slot_stride_, kNaN);
    for (size_t i = 0; i < sequences_.size(); ++i) {
      const std::vector<float> first =
          LinearFirstState(config_, sequences_[i].id);
      std::copy(first.begin(), first.end(),
                all.begin() + Slot(i) * slot_stride_);
    }
    return all;
  }

  const LinearGpuConfig config_;
  const std::vector<Sequence> sequences_;
  std::vector<int64_t> done_;
  std::vector<std::vector<float>> outs_;
  const int64_t slot_stride_;
  DeviceBuffer<float> slots_;
  LinearDeferredParams params_ = {};
};

class LinearDeferredGpuTest : public GpuTest {
 protected:
  static void ExpectOracle(const LinearGpuConfig& c, int64_t steps) {
    const std::vector<Sequence> sequences = {{0, 0}, {1, 5}, {2, 1007}};
    DeferredBatch batch(c, sequences);
    for (int64_t t = 0; t < steps; ++t) {
      ASSERT_NO_FATAL_FAILURE(batch.Run({1, 1, 1}, t % 2 == 1));
    }
    const double tolerance = 5e-6 * std::sqrt(static_cast<double>(steps));
    for (size_t i = 0; i < sequences.size(); ++i) {
      LinearGpuOracle oracle(batch.TokensOf(i), sequences[i].id);
      const auto outs = absl::MakeConstSpan(batch.outs(i));
      for (int64_t t = 0; t < steps; ++t) {
        oracle.Step();
        for (int64_t h = 0; h < c.heads; ++h) {
          const size_t n = c.value_dim;
          ASSERT_TRUE(
              NearScaled(outs.subspan((t * c.heads + h) * n, n),
                         absl::MakeConstSpan(oracle.out()).subspan(h * n, n),
                         tolerance, oracle.scale()[h]))
              << "sequence " << i << " token " << t << " head " << h;
        }
      }
      ASSERT_TRUE(
          RelativelyNear(batch.FoldedState(i), oracle.state(), tolerance))
          << "sequence " << i;
    }
  }
};

TEST(LinearDeferredPlanTest, PendingTokensAreThoseSinceTheLastFoldOrPrompt) {
  const auto pending = [](int64_t position, int64_t prompt_end) {
    const LinearPending p = LinearPendingAt(position, prompt_end);
    return std::pair(p.first, p.count);
  };
  EXPECT_EQ(pending(0, 0), std::pair(int64_t{0}, 0));
  EXPECT_EQ(pending(7, 0), std::pair(int64_t{0}, 7));
  EXPECT_EQ(pending(8, 0), std::pair(int64_t{8}, 0));
  EXPECT_EQ(pending(15, 3), std::pair(int64_t{8}, 7));
  EXPECT_EQ(pending(13, 11), std::pair(int64_t{11}, 2));
  EXPECT_EQ(pending(11, 11), std::pair(int64_t{11}, 0));
}

TEST_F(LinearDeferredGpuTest, MatchesFloat64InEveryShape) {
  for (const auto& [heads, d, e] :
       {std::tuple(1, 8, 8), std::tuple(3, 32, 40), std::tuple(5, 64, 32),
        std::tuple(1, 72, 200), std::tuple(2, 128, 128), std::tuple(1, 8, 256),
        std::tuple(1, 256, 64), std::tuple(1, 256, 256),
        std::tuple(1, 64, 1024), std::tuple(171, 40, 72)}) {
    for (LrpeType position :
         {LrpeType::kNone, LrpeType::kRotate, LrpeType::kCosine}) {
      SCOPED_TRACE(testing::Message()
                   << heads << " heads " << d << " x " << e << " position "
                   << static_cast<int>(position));
      LinearGpuConfig c;
      c.heads = heads;
      c.head_dim = d;
      c.value_dim = e;
      c.position = position;
      ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, 11));
    }
  }
}

TEST_F(LinearDeferredGpuTest, MatchesFloat64WithEveryActivation) {
  for (Activation activation :
       {Activation::kNone, Activation::kSilu, Activation::kRelu,
        Activation::kSigmoid, Activation::kOnePlusElu, Activation::kSoftmax}) {
    for (int which = 0; which < 4; ++which) {
      SCOPED_TRACE(testing::Message()
                   << "activation " << static_cast<int>(activation) << " of "
                   << which);
      LinearGpuConfig c;
      c.head_dim = which == 3 ? 24 : 96;
      c.value_dim = 40;
      c.q_activation = c.k_activation = Activation::kNone;
      if (which == 0 || which == 3) c.q_activation = activation;
      if (which == 1 || which == 3) c.k_activation = activation;
      if (which == 2 || which == 3) c.v_activation = activation;
      ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, 9));
    }
  }
}

// A decay of 0 forgets all; one of 1 nothing; in between, over many folds.
TEST_F(LinearDeferredGpuTest, ManyTokensMatchFloat64WithAnyDecay) {
  LinearGpuConfig c;
  c.heads = 5;
  c.value_dim = 96;
  c.position = LrpeType::kRotate;
  c.decay = {1.0f, 0.0f, 1e-30f, 0.5f, 0.999f};
  ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, 50));
}

// Exactness: tokens have the same bits however they are divided among launches,
// and whatever else is in these.
TEST_F(LinearDeferredGpuTest, AnyCutsAndAnyBatchHaveTheSameBits) {
  for (LrpeType position : {LrpeType::kNone, LrpeType::kCosine}) {
    LinearGpuConfig c;
    c.heads = 4;
    c.value_dim = 136;
    c.position = position;
    const std::vector<Sequence> sequences = {{0, 0}, {1, 5}, {2, 8}, {3, 39}};
    constexpr int64_t kTokens = 45;
    DeferredBatch singly(c, sequences);
    for (int64_t t = 0; t < kTokens; ++t) {
      ASSERT_NO_FATAL_FAILURE(singly.Run({1, 1, 1, 1}));
    }
    for (uint64_t seed = 1; seed < 6; ++seed) {
      DeferredBatch cut(c, sequences);
      std::vector<int64_t> left(sequences.size(), kTokens);
      for (uint64_t launch = 0; *std::max_element(left.begin(), left.end()) > 0;
           ++launch) {
        const auto words = Philox4x32(seed, launch, 0);
        std::vector<int64_t> counts;
        for (size_t i = 0; i < left.size(); ++i) {
          counts.push_back(std::min<int64_t>(left[i], words[i] % 21));
          left[i] -= counts[i];
        }
        ASSERT_NO_FATAL_FAILURE(cut.Run(counts, launch % 2 == 1));
      }
      for (size_t i = 0; i < sequences.size(); ++i) {
        ASSERT_TRUE(SameBits(cut.outs(i), singly.outs(i))) << seed << " " << i;
        ASSERT_TRUE(SameBits(cut.FoldedState(i), singly.FoldedState(i)));
      }
    }
    for (size_t i = 0; i < sequences.size(); ++i) {
      DeferredBatch alone(c, {sequences[i]});
      ASSERT_NO_FATAL_FAILURE(alone.Run({kTokens}));
      ASSERT_TRUE(SameBits(alone.outs(0), singly.outs(i))) << i;
      ASSERT_TRUE(SameBits(alone.FoldedState(0), singly.FoldedState(i))) << i;
    }
  }
}

TEST_F(LinearDeferredGpuTest, RefusesWhatItDoesNotSupport) {
  DeferredBatch batch(LinearGpuConfig{}, {{0, 0}});
  ASSERT_NO_FATAL_FAILURE(batch.Run({1}));
  const LinearDeferredParams good = batch.params();
  const auto refused = [](const LinearDeferredParams& p) {
    return LaunchLinearDeferred(p, false, nullptr) == cudaErrorInvalidValue &&
           LaunchLinearFold(p, nullptr) == cudaErrorInvalidValue;
  };
  for (int64_t dim : {0, 4, 12, 1032}) {
    LinearDeferredParams p = good;
    p.of.value_dim = dim;
    EXPECT_TRUE(refused(p)) << dim;
    p = good;
    p.of.head_dim = dim;
    EXPECT_TRUE(refused(p)) << dim;
  }
  LinearDeferredParams p = good;
  p.of.sequences = 65536;
  EXPECT_TRUE(refused(p));
  p = good;
  p.of.states = Misaligned(p.of.states);
  EXPECT_TRUE(refused(p));
  p = good;
  p.rings = Misaligned(p.rings);
  EXPECT_TRUE(refused(p));
  p = good;
  p.rings = nullptr;
  EXPECT_TRUE(refused(p));
  p = good;
  p.prompt_ends = nullptr;
  EXPECT_TRUE(refused(p));
  p = good;
  p.of.slot_stride += 1;
  EXPECT_TRUE(refused(p));
  p = good;
  p.of.q = nullptr;
  EXPECT_EQ(LaunchLinearDeferred(p, false, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace recurve
