// Non-causal linear attention on the GPU against float64, the step kernel and
// itself.

#include <cstdint>
#include <tuple>
#include <vector>

#include "tests/gpu/linear_noncausal_fixture.h"

namespace recurve {
namespace linear_noncausal_testing {
namespace {

TEST_F(LinearNoncausalGpuTest, MatchesFloat64AtEveryLength) {
  Config c;
  ASSERT_NO_FATAL_FAILURE(ExpectOracle(
      c, {1, 0, 2, 63, 64, 65, 127, 128, 129, 513, 640, 1025, 4097, 31}));
}

// Tiles are 64 tokens.
TEST_F(LinearNoncausalGpuTest, MatchesFloat64AtEveryLengthMade) {
  Config c;
  c.q = Activation::kSoftmax;
  c.k = c.g = Activation::kSilu;
  for (LrpeType position : {LrpeType::kNone, LrpeType::kCosine}) {
    c.position = position;
    ASSERT_NO_FATAL_FAILURE(
        ExpectOracle(c, {1, 0, 63, 64, 65, 129, 192, 193, 255, 256, 257, 640,
                         1025, 2049, 4097}));
  }
}

// Where factors are made in registers: four blocks share a row's tokens, in
// tiles of 128.
TEST_F(LinearNoncausalGpuTest, MatchesFloat64AtEveryLengthInRegisters) {
  Config rotated;
  rotated.position = LrpeType::kRotate;
  Config by_sequence;
  by_sequence.q_sequence = by_sequence.k_sequence = true;
  for (const Config& c : {rotated, by_sequence}) {
    SCOPED_TRACE(testing::Message()
                 << "position " << static_cast<int>(c.position));
    ASSERT_NO_FATAL_FAILURE(
        ExpectOracle(c, {1, 0, 2, 63, 127, 128, 129, 255, 256, 257, 511, 512,
                         513, 640, 1025, 31}));
  }
}

TEST_F(LinearNoncausalGpuTest, MatchesFloat64InEveryShape) {
  for (const auto& [heads, d, e] :
       {std::tuple(1, 16, 8), std::tuple(3, 32, 40), std::tuple(5, 64, 32),
        std::tuple(2, 80, 128), std::tuple(1, 96, 72),
        std::tuple(3, 128, 64)}) {
    for (LrpeType position :
         {LrpeType::kNone, LrpeType::kRotate, LrpeType::kCosine}) {
      SCOPED_TRACE(testing::Message()
                   << heads << " heads " << d << " x " << e << " position "
                   << static_cast<int>(position));
      Config c;
      c.heads = heads;
      c.head_dim = d;
      c.value_dim = e;
      c.position = position;
      c.scale = 0.25f;
      c.first_position = 5;
      ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {200, 700}));
    }
  }
}

TEST_F(LinearNoncausalGpuTest, MatchesFloat64WithEveryActivation) {
  for (LrpeType position :
       {LrpeType::kNone, LrpeType::kRotate, LrpeType::kCosine}) {
    for (int which = 0; which < 9; ++which) {
      SCOPED_TRACE(testing::Message() << "case " << which << " position "
                                      << static_cast<int>(position));
      Config c;
      c.head_dim = which == 4 ? 48 : 128;
      c.position = position;
      if (which == 0 || which == 6) c.q = Activation::kSilu;
      if (which == 1 || which == 6) c.k = Activation::kSilu;
      if (which == 2 || which == 6 || which == 8) c.g = Activation::kSilu;
      if (which == 3 || which == 4 || which >= 7) c.q = Activation::kSoftmax;
      if (which == 4 || which == 5) c.k = Activation::kSoftmax;
      c.gate = which != 5 && which != 7;
      ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {150, 600}));
    }
  }
}

TEST_F(LinearNoncausalGpuTest, MatchesFloat64WithSequenceSoftmax) {
  for (LrpeType position :
       {LrpeType::kNone, LrpeType::kRotate, LrpeType::kCosine}) {
    for (int which = 1; which < 4; ++which) {
      SCOPED_TRACE(testing::Message() << "case " << which << " position "
                                      << static_cast<int>(position));
      Config c;
      c.head_dim = which == 1 ? 64 : 128;
      c.position = position;
      c.q_sequence = which & 1;
      c.k_sequence = which & 2;
      ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {1, 70, 900}));
    }
  }
}

// Relative to what is no token, e^x would be beyond float32. (Further from 0,
// features round to the same few numbers of bfloat16, and so do factors, whose
// errors then add up.)
TEST_F(LinearNoncausalGpuTest, SequenceSoftmaxTakesKeysFarBelow0) {
  for (LrpeType position :
       {LrpeType::kNone, LrpeType::kRotate, LrpeType::kCosine}) {
    SCOPED_TRACE(testing::Message()
                 << "position " << static_cast<int>(position));
    Config c;
    c.position = position;
    c.q_sequence = c.k_sequence = true;
    c.q_levels = c.k_levels = {-100.0f};
    ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {1, 70, 900}));
  }
}

TEST_F(LinearNoncausalGpuTest, AnglesAreRightFarOut) {
  for (LrpeType position : {LrpeType::kRotate, LrpeType::kCosine}) {
    Config c;
    c.position = position;
    c.first_position = 1000003;
    ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {700}));
  }
}

// With cosines some blocks have several heads, and change their angles, and
// waves are restarted.
TEST_F(LinearNoncausalGpuTest, EachHeadMayHaveItsOwnAngles) {
  for (LrpeType position : {LrpeType::kRotate, LrpeType::kCosine}) {
    Config c;
    c.heads = 70;
    c.head_dim = 48;
    c.value_dim = 16;
    c.position = position;
    c.head_angles = true;
    ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {2200, 65}));
  }
}

TEST_F(LinearNoncausalGpuTest, ARowAloneHasTheSameBits) {
  for (LrpeType position : {LrpeType::kCosine, LrpeType::kRotate}) {
    SCOPED_TRACE(testing::Message()
                 << "position " << static_cast<int>(position));
    Config c;
    c.position = position;
    c.q = c.k = c.g = Activation::kSilu;
    Batch all(c, {300, 64, 1000, 129});
    Batch alone(c, {1000}, 3);
    ASSERT_NO_FATAL_FAILURE(all.Run());
    ASSERT_NO_FATAL_FAILURE(alone.Run());
    EXPECT_TRUE(SameBits(all.Out(2), alone.Out(0)));
    EXPECT_TRUE(SameBits(all.State(2), alone.State(0)));
  }
}

// Features that are large, and of which some are alike: silu and softmax stay
// within what they are to be.
TEST_F(LinearNoncausalGpuTest, LargeFeaturesStayFinite) {
  Config c;
  c.position = LrpeType::kCosine;
  c.q = Activation::kSoftmax;
  c.k = c.g = Activation::kSilu;
  c.ramp = 60.0f;
  ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {70, 300}));
}

// Tokens of all sizes together: softmax is of differences, and a value near 0
// is not taken relative to its maximum.
TEST_F(LinearNoncausalGpuTest, SoftmaxIsOfDifferences) {
  for (LrpeType position : {LrpeType::kNone, LrpeType::kCosine}) {
    SCOPED_TRACE(testing::Message()
                 << "position " << static_cast<int>(position));
    Config c;
    c.position = position;
    c.q = c.k = Activation::kSoftmax;
    c.g = Activation::kSilu;
    c.q_levels = {0.0f,   13.0f, 700.0f, -13.0f, -15.0f,
                  -17.0f, -1e4f, 15.0f,  4e9f,   -3e30f};
    c.k_levels = {-900.0f, 0.0f, 14.0f, -17.0f, 3e4f, -5e9f, 2e30f};
    ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {70, 300}));
    c.head_dim = 48;
    ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {130}));
  }
}

TEST_F(LinearNoncausalGpuTest, ATokensSoftmaxDependsOnNoOther) {
  for (LrpeType position : {LrpeType::kNone, LrpeType::kCosine}) {
    SCOPED_TRACE(testing::Message()
                 << "position " << static_cast<int>(position));
    Config c;
    c.position = position;
    c.q = Activation::kSoftmax;
    Config beside = c;
    beside.q_levels = {0.0f, 50.0f, 0.0f, 0.0f, -300.0f, 0.0f, 0.0f};
    Batch one(c, {300});
    Batch other(beside, {300});
    ASSERT_NO_FATAL_FAILURE(one.Run());
    ASSERT_NO_FATAL_FAILURE(other.Run());
    const std::vector<float> want = one.Out(0);
    const std::vector<float> got = other.Out(0);
    const int64_t width = c.heads * c.value_dim;
    for (int64_t t = 0; t < 300; ++t) {
      if (beside.q_levels[t % 7] != 0.0f) continue;
      const auto row = [&](const std::vector<float>& out) {
        const auto at = out.begin() + t * width;
        return std::vector<float>(at, at + width);
      };
      ASSERT_TRUE(SameBits(row(got), row(want))) << "token " << t;
    }
  }
}

// Without a state to keep, slots are not looked at.
TEST_F(LinearNoncausalGpuTest, StatesMayBeLeftOut) {
  Config c;
  Batch with(c, {300});
  Batch without(c, {300});
  ASSERT_NO_FATAL_FAILURE(with.Run());
  LinearNoncausalParams p = without.Params();
  p.max_rows = 1;
  p.rows = nullptr;
  p.states = nullptr;
  p.slots = nullptr;
  ASSERT_EQ(LaunchLinearNoncausalSeed(p, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(SameBits(without.Out(0), with.Out(0)));
}

// The same values, widened: by both kernels.
TEST_F(LinearNoncausalGpuTest, OutputsMayBeFloat32) {
  for (LrpeType position :
       {LrpeType::kNone, LrpeType::kCosine, LrpeType::kRotate}) {
    SCOPED_TRACE(testing::Message() << static_cast<int>(position));
    Config c;
    c.value_dim = 72;
    c.position = position;
    Batch batch(c, {1, 300, 64, 700});
    ASSERT_NO_FATAL_FAILURE(batch.Run());
    LinearNoncausalParams p = batch.Params();
    const int64_t tokens = 1 + 300 + 64 + 700 + 9;  // and those of the sink
    const int64_t width = c.heads * c.value_dim;
    DeviceBuffer<float> out(std::vector<float>(tokens * width + kGap, kCanary));
    p.out_type = ElementType::kFloat32;
    p.out = out.data();
    p.out_stride = width;
    ASSERT_EQ(LaunchLinearNoncausalSeed(p, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<float> want;
    for (int64_t row = 0; row < 4; ++row) {
      const std::vector<float> part = batch.Out(row);
      want.insert(want.end(), part.begin(), part.end());
    }
    want.resize(tokens * width, 0.0f);
    want.resize(tokens * width + kGap, kCanary);
    EXPECT_TRUE(SameBits(out.Read(), want));
  }
}

TEST_F(LinearNoncausalGpuTest, RefusesWhatItDoesNotSupport) {
  Config c;
  Batch batch(c, {3});
  const LinearNoncausalParams good = batch.Params();
  const auto refused = [](const LinearNoncausalParams& p) {
    return LaunchLinearNoncausalSeed(p, nullptr) == cudaErrorInvalidValue;
  };
  for (int64_t dim : {0, 4, 12, 136}) {
    LinearNoncausalParams p = good;
    p.head_dim = dim;
    EXPECT_TRUE(refused(p)) << dim;
    p = good;
    p.value_dim = dim;
    EXPECT_TRUE(refused(p)) << dim;
  }
  LinearNoncausalParams p = good;
  p.position = LrpeType::kRotate;
  p.head_dim = 24;
  EXPECT_TRUE(refused(p));
  p = good;
  p.q_activation = Activation::kRelu;
  EXPECT_TRUE(refused(p));
  p = good;
  p.g_activation = Activation::kSoftmax;
  EXPECT_TRUE(refused(p));
  for (int missing = 0; missing < 6; ++missing) {
    p = good;
    if (missing == 0) p.q = nullptr;
    if (missing == 1) p.k = nullptr;
    if (missing == 2) p.v = nullptr;
    if (missing == 3) p.out = nullptr;
    if (missing == 4) p.query_start = nullptr;
    if (missing == 5) p.slots = nullptr;
    EXPECT_TRUE(refused(p)) << missing;
  }
  p = good;
  p.position = LrpeType::kCosine;
  p.positions = nullptr;
  EXPECT_TRUE(refused(p));
  p = good;
  p.workspace = nullptr;
  EXPECT_TRUE(refused(p));
  p = good;
  p.num_heads = 1 << 16;
  p.max_rows = 2049;
  EXPECT_TRUE(refused(p));
  p = good;
  p.slot_stride += 2;  // a state would not begin at a multiple of 16 bytes
  EXPECT_TRUE(refused(p));
  for (LrpeType position : {LrpeType::kNone, LrpeType::kRotate}) {
    for (int which = 0; which < 7; ++which) {
      p = good;
      p.position = position;
      if (which == 0) p.q = Misaligned(p.q);
      if (which == 1) p.k = Misaligned(p.k);
      if (which == 2) p.v = Misaligned(p.v);
      if (which == 3) p.g = Misaligned(p.q);
      if (which == 4) p.out = Misaligned(p.out);
      if (which == 5) p.states = Misaligned(p.states);
      if (which == 6) {
        if (position == LrpeType::kRotate) continue;  // needs none
        p.workspace = static_cast<char*>(p.workspace) + 64;
      }
      EXPECT_TRUE(refused(p)) << which;
    }
  }
}

}  // namespace
}  // namespace linear_noncausal_testing
}  // namespace recurve
