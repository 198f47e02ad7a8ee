// The linear-attention step on the GPU against float64, the CPU and itself.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "base/thread_pool.h"
#include "kernels/linear_attn/linear_attn.h"
#include "kernels/seeds/linear_step/linear_step_plan.h"
#include "tests/gpu/linear_gpu_testing.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

constexpr ElementType kTypes[] = {ElementType::kFloat32,
                                  ElementType::kBFloat16};
constexpr LrpeType kPositions[] = {LrpeType::kNone, LrpeType::kRotate,
                                   LrpeType::kCosine};

class LinearGpuTest : public GpuTest {
 protected:
  static void ExpectOut(const std::vector<float>& got,
                        const LinearGpuOracle& want, const LinearGpuConfig& c,
                        double tolerance) {
    for (int64_t h = 0; h < c.heads; ++h) {
      const size_t n = c.value_dim;
      ASSERT_TRUE(NearScaled(absl::MakeConstSpan(got).subspan(h * n, n),
                             absl::MakeConstSpan(want.out()).subspan(h * n, n),
                             tolerance, want.scale()[h]))
          << "head " << h;
    }
  }

  // `steps` steps of three sequences against the oracle.
  static void ExpectOracle(const LinearGpuConfig& c, int64_t steps) {
    LinearGpuBatch batch(c, {0, 1, 2});
    std::vector<LinearGpuOracle> oracles;
    for (int64_t id : {0, 1, 2}) oracles.emplace_back(c, id);
    const double io = RoundingOf(c.io);
    // A bfloat16 state is rounded at each step.
    const double state = (c.state == ElementType::kFloat32 ? 4e-6 : 2e-2) *
                         std::sqrt(static_cast<double>(steps));
    for (int64_t t = 0; t < steps; ++t) {
      ASSERT_NO_FATAL_FAILURE(batch.Step()) << "step " << t;
      for (int64_t r = 0; r < 3; ++r) {
        oracles[r].Step();
        ASSERT_NO_FATAL_FAILURE(
            ExpectOut(batch.Out(r), oracles[r], c, io + state))
            << "step " << t << " row " << r;
      }
    }
    for (int64_t r = 0; r < 3; ++r) {
      ASSERT_TRUE(RelativelyNear(batch.State(r), oracles[r].state(), state));
    }
  }
};

TEST(LinearStepPlanTest, CoversTheState) {
  for (int64_t dim = 8; dim <= 512; dim += 8) {
    const LinearStepPlan plan = PlanLinearStep(dim, dim);
    EXPECT_GE(plan.threads, dim);
    EXPECT_LE(plan.threads, kLinearMaxThreads);
    EXPECT_GE(plan.tiles * kLinearTileColumns, dim);
    EXPECT_LT((plan.tiles - 1) * kLinearTileColumns, dim);
  }
}

TEST_F(LinearGpuTest, MatchesFloat64InEveryShape) {
  for (const auto& [heads, d, e] :
       {std::tuple(1, 8, 8), std::tuple(3, 32, 40), std::tuple(5, 64, 32),
        std::tuple(1, 72, 200), std::tuple(2, 128, 128), std::tuple(1, 8, 256),
        std::tuple(1, 256, 64), std::tuple(1, 256, 256),
        // More than kLinearFewBlocks.
        std::tuple(350, 8, 8), std::tuple(171, 40, 72)}) {
    for (ElementType io : kTypes) {
      for (ElementType state : kTypes) {
        for (LrpeType position : kPositions) {
          SCOPED_TRACE(testing::Message()
                       << heads << " heads " << d << " x " << e << " io "
                       << static_cast<int>(io) << " state "
                       << static_cast<int>(state) << " position "
                       << static_cast<int>(position));
          LinearGpuConfig c;
          c.heads = heads;
          c.head_dim = d;
          c.value_dim = e;
          c.io = io;
          c.state = state;
          c.position = position;
          ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, 3));
        }
      }
    }
  }
}

TEST_F(LinearGpuTest, MatchesFloat64WithEveryActivation) {
  for (Activation activation :
       {Activation::kNone, Activation::kSilu, Activation::kRelu,
        Activation::kSigmoid, Activation::kOnePlusElu, Activation::kSoftmax}) {
    for (LrpeType position : kPositions) {
      for (int which = 0; which < 4; ++which) {
        SCOPED_TRACE(testing::Message()
                     << "activation " << static_cast<int>(activation)
                     << " position " << static_cast<int>(position) << " of "
                     << which);
        LinearGpuConfig c;
        c.head_dim = which == 3 ? 24 : 96;
        c.value_dim = 40;
        c.position = position;
        c.scale = 0.125f;
        c.q_activation = c.k_activation = Activation::kNone;
        if (which == 0 || which == 3) c.q_activation = activation;
        if (which == 1 || which == 3) c.k_activation = activation;
        if (which == 2 || which == 3) c.v_activation = activation;
        ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, 2));
      }
    }
  }
}

TEST_F(LinearGpuTest, AnglesAreRightAtAnyPosition) {
  for (int64_t first : {int64_t{0}, int64_t{1}, int64_t{1000000},
                        int64_t{1000003}, int64_t{1} << 40}) {
    for (LrpeType position : {LrpeType::kRotate, LrpeType::kCosine}) {
      SCOPED_TRACE(testing::Message()
                   << first << " position " << static_cast<int>(position));
      LinearGpuConfig c;
      c.position = position;
      c.first_position = first;
      c.angles_by_head = first == 1000000;
      ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, 2));
    }
  }
}

TEST_F(LinearGpuTest, ManyStepsMatchFloat64) {
  LinearGpuConfig c;
  c.value_dim = 96;
  c.position = LrpeType::kRotate;
  c.first_position = 5;
  for (ElementType state : kTypes) {
    c.state = state;
    ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, 50));
  }
}

// Also where a few blocks load in another order than many.
TEST_F(LinearGpuTest, ARowAloneHasTheSameBits) {
  constexpr int64_t kHeads = 80;
  ASSERT_LE(kHeads * PlanLinearStep(64, 72).tiles, kLinearFewBlocks);
  ASSERT_GT(7 * kHeads * PlanLinearStep(64, 72).tiles, kLinearFewBlocks);
  for (ElementType state : kTypes) {
    LinearGpuConfig c;
    c.heads = kHeads;
    c.value_dim = 72;
    c.state = state;
    c.io = ElementType::kBFloat16;
    c.position = LrpeType::kCosine;
    c.first_position = 9;
    LinearGpuBatch all(c, {0, 1, 2, 3, 4, 5, 6});
    LinearGpuBatch alone(c, {4});
    for (int64_t t = 0; t < 12; ++t) {
      ASSERT_NO_FATAL_FAILURE(all.Step());
      ASSERT_NO_FATAL_FAILURE(alone.Step());
      ASSERT_TRUE(SameBits(all.Out(4), alone.Out(0))) << t;
      ASSERT_TRUE(SameBits(all.State(4), alone.State(0))) << t;
    }
  }
}

TEST_F(LinearGpuTest, MatchesTheCpu) {
  LinearGpuConfig c;
  c.heads = 5;
  LinearGpuBatch batch(c, {3});
  ASSERT_NO_FATAL_FAILURE(batch.Step());
  const std::vector<float> token = LinearToken(c, 3, 0);
  std::vector<float> state = LinearFirstState(c, 3);
  std::vector<float> out(c.heads * c.value_dim);
  const std::vector<float> decay = c.Decay();
  const int32_t query_start[] = {0, 1};
  const int32_t slot = 0;
  LinearAttentionParams p = {};
  p.num_heads = c.heads;
  p.head_dim = c.head_dim;
  p.value_dim = c.value_dim;
  p.q = token.data();
  p.k = p.q + c.heads * c.head_dim;
  p.v = p.k + c.heads * c.head_dim;
  p.stride = c.token_elements();
  p.out = out.data();
  p.out_stride = c.heads * c.value_dim;
  p.query_start = query_start;
  p.sequences = 1;
  p.q_activation = c.q_activation;
  p.k_activation = c.k_activation;
  p.v_activation = c.v_activation;
  p.position = LrpeType::kNone;
  p.decay = decay.data();
  p.states = state.data();
  p.slots = &slot;
  ThreadPool pool(1);
  LinearAttention(p, pool);
  const std::vector<double> want_out(out.begin(), out.end());
  const std::vector<double> want_state(state.begin(), state.end());
  EXPECT_TRUE(RelativelyNear(batch.Out(0), want_out, 1e-5));
  EXPECT_TRUE(RelativelyNear(batch.State(0), want_state, 2e-6));
}

// The bits of a bfloat16 state, from the definition.
TEST_F(LinearGpuTest, RoundsAStateAsDocumented) {
  LinearGpuConfig c;
  c.state = ElementType::kBFloat16;
  c.q_activation = c.k_activation = Activation::kNone;
  c.first_position = 12345;
  LinearGpuBatch batch(c, {0});
  ASSERT_NO_FATAL_FAILURE(batch.Step());
  const std::vector<float> got = batch.State(0);
  const std::vector<float> token = LinearToken(c, 0, 0);
  const std::vector<float> first = LinearFirstState(c, 0);
  const std::vector<float> decay = c.Decay();
  const float* k = token.data() + c.heads * c.head_dim;
  const float* v = k + c.heads * c.head_dim;
  for (int64_t i = 0; i < c.state_elements(); ++i) {
    const int64_t head = i / (c.head_dim * c.value_dim);
    const float update =
        k[i / c.value_dim] * v[head * c.value_dim + i % c.value_dim];
    const float x = std::fma(decay[head], first[i], update);
    const auto words =
        Philox4x32(c.rounding_seed, i / 8, static_cast<uint64_t>(12345));
    const uint32_t random = words[i % 8 / 2] >> (i % 2 * 16) & 0xffffu;
    const float want = BFloat16ToFloat(
        static_cast<uint16_t>((std::bit_cast<uint32_t>(x) + random) >> 16));
    ASSERT_EQ(got[i], want) << i;
  }
}

// Each launch reads what the one before it wrote, in a graph, with and without
// overlap.
TEST_F(LinearGpuTest, OverlapWaitsForItsInputs) {
  constexpr int64_t kHeads = 8, kDim = 64, kWidth = kHeads * kDim;
  constexpr int kLaunches = 12;
  const auto run = [](bool overlap) {
    DeviceBuffer<float> rows(RandomTensor(8, (kLaunches + 1) * kWidth));
    DeviceBuffer<float> kv(RandomTensor(9, kLaunches * kWidth));
    DeviceBuffer<float> states(
        RandomTensor(10, (kLaunches + 1) * kHeads * kDim * kDim));
    DeviceBuffer<float> decay(std::vector<float>(kHeads, 0.5f));
    std::vector<int32_t> slot_list;
    for (int i = 0; i < kLaunches; ++i) slot_list.push_back(kLaunches - i);
    DeviceBuffer<int32_t> slots(slot_list);
    cudaStream_t stream;
    EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
              cudaSuccess);
    for (int i = 0; i < kLaunches; ++i) {
      LinearStepParams p = {};
      p.num_heads = kHeads;
      p.head_dim = p.value_dim = kDim;
      p.q = rows.data() + i * kWidth;
      p.k = p.v = kv.data() + i * kWidth;
      p.stride = p.out_stride = kWidth;
      p.out = rows.data() + (i + 1) * kWidth;
      p.max_rows = 1;
      p.slots = slots.data() + i;
      p.q_activation = Activation::kSigmoid;
      p.scale = 1.0f;
      p.decay = decay.data();
      p.states = states.data();
      p.slot_stride = kWidth * kDim;
      p.overlap_previous = overlap && i > 0;
      EXPECT_EQ(LaunchLinearStep(p, stream), cudaSuccess);
    }
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    }
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    std::vector<float> all = rows.Read();
    const std::vector<float> after = states.Read();
    all.insert(all.end(), after.begin(), after.end());
    return all;
  };
  EXPECT_TRUE(SameBits(run(true), run(false)));
}

TEST_F(LinearGpuTest, RefusesWhatItDoesNotSupport) {
  LinearGpuBatch batch(LinearGpuConfig{}, {0});
  const LinearStepParams good = batch.Params();
  const auto refused = [](const LinearStepParams& p) {
    return LaunchLinearStep(p, nullptr) == cudaErrorInvalidValue;
  };
  for (int64_t dim : {0, 4, 12, 264}) {
    LinearStepParams p = good;
    p.head_dim = dim;
    EXPECT_TRUE(refused(p)) << dim;
    p = good;
    p.value_dim = dim;
    EXPECT_TRUE(refused(p)) << dim;
  }
  LinearStepParams p = good;
  p.max_rows = 65536;
  EXPECT_TRUE(refused(p));
  p = good;
  p.states = nullptr;
  EXPECT_TRUE(refused(p));
  p = good;
  p.positions = nullptr;
  p.state_type = ElementType::kBFloat16;
  EXPECT_TRUE(refused(p));
  p = good;
  p.states = Misaligned(p.states);
  EXPECT_TRUE(refused(p));
  p = good;
  p.max_rows = 0;
  EXPECT_EQ(LaunchLinearStep(p, nullptr), cudaSuccess);
}

// Rounded to nearest, increments of an eighth of a bfloat16 step are lost every
// time; rounded stochastically, their sum arrives.
TEST_F(LinearGpuTest, ABFloat16StateDoesNotStall) {
  constexpr int64_t kDim = 64;
  constexpr float kIncrement = 0x1p-10f;  // a step at 1.0 is 2^-7
  const std::vector<float> key(kDim, 1.0f);
  const std::vector<float> value(kDim, kIncrement);
  DeviceBuffer<float> q(key), k(key), v(value), decay({1.0f});
  DeviceBuffer<float> out(std::vector<float>(kDim, 0.0f));
  DeviceTensor states(ElementType::kBFloat16,
                      std::vector<float>(2 * kDim * kDim, 1.0f));
  DeviceBuffer<int32_t> slots(std::vector<int32_t>{1});
  DeviceBuffer<int64_t> positions(std::vector<int64_t>{0});
  LinearStepParams p = {};
  p.num_heads = 1;
  p.head_dim = p.value_dim = kDim;
  p.q = q.data();
  p.k = k.data();
  p.v = v.data();
  p.stride = p.out_stride = kDim;
  p.out = out.data();
  p.max_rows = 1;
  p.slots = slots.data();
  p.positions = positions.data();
  p.scale = 1.0f;
  p.decay = decay.data();
  p.state_type = ElementType::kBFloat16;
  p.states = states.data();
  p.slot_stride = kDim * kDim;
  for (int64_t t = 0; t < 64; ++t) {
    positions.Write({t});
    ASSERT_EQ(LaunchLinearStep(p, nullptr), cudaSuccess);
  }
  const std::vector<float> got = states.Read();
  double mean = 0.0;
  double worst = 0.0;
  const double want = 1.0 + 64 * kIncrement;
  for (int64_t i = kDim * kDim; i < 2 * kDim * kDim; ++i) {
    mean += got[i] / (kDim * kDim);
    worst = std::max(worst, std::abs(got[i] - want));
  }
  // A round has a standard deviation of 2^-7 · √(7/64); the sum of 64 has eight
  // times as much, the mean of 4096 a 64th of that: 3.2e-4.
  EXPECT_NEAR(mean, want, 1.6e-3);
  EXPECT_LT(worst, 6 * 8 * 0x1p-7 * std::sqrt(7.0 / 64.0));
}

}  // namespace
}  // namespace recurve
