// The linear-attention prefill on the GPU against float64, the step kernel and
// itself.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/linear_attn/causal/linear_chunks_plan.h"
#include "kernels/linear_attn/causal/linear_prefill_plan.h"
#include "kernels/seeds/linear_step/linear_step_cuda.h"
#include "tests/gpu/linear_prefill_gpu_testing.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

using Options = LinearPrefillBatch::Options;

// For outputs and states, ‖error‖ / ‖value‖ of each head.
constexpr double kTolerance = 4e-3;

constexpr LrpeType kPositions[] = {LrpeType::kNone, LrpeType::kRotate,
                                   LrpeType::kCosine};

LinearGpuConfig Plain(int64_t heads, int64_t d, int64_t e) {
  LinearGpuConfig c;
  c.heads = heads;
  c.head_dim = d;
  c.value_dim = e;
  c.io = ElementType::kBFloat16;
  c.q_activation = c.k_activation = c.v_activation = Activation::kNone;
  return c;
}

class LinearPrefillGpuTest : public GpuTest {
 protected:
  static void ExpectOracle(const LinearGpuConfig& c,
                           const std::vector<PromptPart>& parts,
                           Options options) {
    LinearPrefillBatch batch(c, parts, options);
    ASSERT_NO_FATAL_FAILURE(batch.Run());
    for (size_t i = 0; i < parts.size(); ++i) {
      const PrefillOracle want(c, parts[i], options.fresh);
      const double out =
          WorstHeadError(batch.Out(i), want.out, c.heads, c.value_dim);
      // A product q · k that cancels keeps the rounding of its terms; among few
      // tokens one such product may dominate.
      EXPECT_LE(out, parts[i].count < 16 ? 2 * kTolerance : kTolerance)
          << "out, length " << parts[i].count << " from " << parts[i].first
          << RelativelyNear(batch.Out(i), want.out, kTolerance).message();
      if (parts[i].count == 0 && options.fresh) continue;
      const double state = WorstHeadError(batch.State(i), want.state, c.heads,
                                          c.key_dim() * c.value_dim);
      EXPECT_LE(state, kTolerance)
          << "state, length " << parts[i].count << " from " << parts[i].first
          << RelativelyNear(batch.State(i), want.state, kTolerance).message();
    }
  }
};

TEST(LinearPrefillPlanTest, CoversTheStateAndFits) {
  constexpr int kLimit = 227 * 1024;
  for (LrpeType position : kPositions) {
    for (int64_t d = 8; d <= 256; d += 8) {
      for (int64_t e = 8; e <= 256; e += 8) {
        for (int64_t rows : {1, 100}) {
          const LinearPrefillPlan plan =
              PlanLinearPrefill(position, d, e, 12, rows, 132, kLimit);
          EXPECT_GE(plan.key_slices * 64, LrpeOutputDim(position, d));
          EXPECT_LE(plan.key_slices, kLinearPrefillMaxSlices);
          EXPECT_GE(plan.key_slices * plan.exchange_blocks, 8);
          const int columns = plan.groups * 64;
          EXPECT_GE(plan.value_tiles * columns, e);
          EXPECT_LT((plan.value_tiles - 1) * columns, e);
          EXPECT_GE(plan.stages, 3);
          EXPECT_LE(plan.shared_bytes, kLimit);
          // What decides the order of sums does not depend on the batch.
          EXPECT_EQ(plan.key_slices, LinearPrefillKeySlices(position, d));
        }
      }
    }
  }
  EXPECT_EQ(
      PlanLinearPrefill(LrpeType::kNone, 128, 128, 32, 1, 132, kLimit).groups,
      1);
  EXPECT_EQ(
      PlanLinearPrefill(LrpeType::kNone, 128, 128, 12, 12, 132, kLimit).groups,
      2);
}

TEST(LinearPrefillPlanTest, ChunksFit) {
  constexpr int kLimit = 227 * 1024;
  for (int64_t d = 8; d <= kLinearChunksMaxDim; d += 8) {
    for (int64_t e = 8; e <= 256; e += 8) {
      for (int64_t rows : {1, 2, 12, 100}) {
        const LinearChunksPlan plan =
            PlanLinearChunks(d, e, 12, rows, 132, kLimit);
        EXPECT_GE(plan.key_tiles * 64, d);
        EXPECT_GE(plan.value_tiles * 64, e);
        EXPECT_LT((plan.value_tiles - 1) * 64, e);
        EXPECT_GE(plan.stages, kLinearChunksMinStages);
        EXPECT_GT(plan.stages, plan.turns);
        EXPECT_LE(plan.shared_bytes, kLimit);
        EXPECT_EQ(plan.lone % plan.turns, 0);
        EXPECT_LE(plan.lone, rows * 12 * plan.value_tiles);
      }
    }
  }
  EXPECT_EQ(PlanLinearChunks(128, 128, 32, 1, 132, kLimit).turns, 2);
  EXPECT_EQ(PlanLinearChunks(128, 128, 34, 1, 132, kLimit).turns, 1);
  const LinearChunksPlan waves =
      PlanLinearChunks(128, 128, 12, 12, 132, kLimit);
  EXPECT_EQ(waves.turns, 2);
  EXPECT_EQ(waves.lone, 264);
}

TEST_F(LinearPrefillGpuTest, MatchesFloat64AtEveryLength) {
  std::vector<PromptPart> parts;
  int64_t sequence = 0;
  for (int64_t count : {1, 0, 2, 63, 64, 65, 127, 128, 129, 640, 4097, 31}) {
    parts.push_back({++sequence, 0, count});
  }
  LinearGpuConfig c = Plain(3, 128, 128);
  ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, parts, {}));
  ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, parts, {.fresh = true}));
}

// Where the first chunk begins within a chunk.
TEST_F(LinearPrefillGpuTest, MatchesFloat64FromEveryPosition) {
  std::vector<PromptPart> parts;
  int64_t sequence = 0;
  for (int64_t first : {1, 5, 62, 63, 64, 65, 1000}) {
    for (int64_t count : {1, 2, 59, 63, 64, 65, 130}) {
      parts.push_back({++sequence, first, count});
    }
  }
  ASSERT_NO_FATAL_FAILURE(ExpectOracle(Plain(2, 64, 64), parts, {}));
}

TEST_F(LinearPrefillGpuTest, MatchesFloat64InEveryShape) {
  for (const auto& [heads, d, e] :
       {std::tuple(1, 8, 8), std::tuple(3, 32, 40), std::tuple(5, 64, 32),
        std::tuple(1, 72, 200), std::tuple(2, 128, 128), std::tuple(1, 8, 256),
        std::tuple(1, 192, 96), std::tuple(1, 256, 64),
        std::tuple(2, 256, 256)}) {
    for (ElementType io : {ElementType::kBFloat16, ElementType::kFloat32}) {
      for (LrpeType position : kPositions) {
        SCOPED_TRACE(testing::Message()
                     << heads << " heads " << d << " x " << e << " io "
                     << static_cast<int>(io) << " position "
                     << static_cast<int>(position));
        LinearGpuConfig c = Plain(heads, d, e);
        c.io = io;
        c.position = position;
        c.scale = 0.25f;
        c.angles_by_head = true;
        ASSERT_NO_FATAL_FAILURE(
            ExpectOracle(c, {{1, 0, 200}, {2, 13, 70}}, {}));
      }
    }
  }
}

TEST_F(LinearPrefillGpuTest, MatchesFloat64WithoutDecay) {
  LinearGpuConfig c = Plain(1, 64, 128);  // head 0 has decay 1
  ASSERT_NO_FATAL_FAILURE(
      ExpectOracle(c, {{1, 0, 300}, {2, 9, 64}}, {.no_decay = true}));
}

// log λ of -200 is λ = 0 in float32, and its logarithm times 0 tokens must not
// be a NaN.
TEST_F(LinearPrefillGpuTest, MatchesFloat64WhereDecayUnderflows) {
  for (ElementType io : {ElementType::kBFloat16, ElementType::kFloat32}) {
    LinearGpuConfig c = Plain(4, 64, 64);
    c.io = io;
    c.decay = {0.0f, 1e-40f, 1e-20f, 1.0f};
    ASSERT_NO_FATAL_FAILURE(
        ExpectOracle(c, {{1, 0, 64}, {2, 0, 1}, {3, 13, 130}}, {}));
  }
}

TEST_F(LinearPrefillGpuTest, MatchesFloat64WithEveryActivation) {
  for (Activation activation :
       {Activation::kSilu, Activation::kRelu, Activation::kSigmoid,
        Activation::kOnePlusElu, Activation::kSoftmax}) {
    for (LrpeType position : kPositions) {
      for (ElementType io : {ElementType::kBFloat16, ElementType::kFloat32}) {
        SCOPED_TRACE(testing::Message()
                     << "activation " << static_cast<int>(activation)
                     << " position " << static_cast<int>(position) << " io "
                     << static_cast<int>(io));
        LinearGpuConfig c = Plain(2, 96, 40);
        c.io = io;
        c.position = position;
        c.q_activation = c.k_activation = c.v_activation = activation;
        ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {{3, 7, 150}}, {}));
      }
    }
  }
}

// The bits of outputs, before they are rounded: those of bfloat16 are these,
// rounded.
TEST_F(LinearPrefillGpuTest, OutputsMayBeFloats) {
  const std::vector<PromptPart> parts = {{1, 0, 200}, {2, 13, 70}, {3, 5, 1}};
  for (const auto& [d, e] :
       {std::pair(128, 128), std::pair(40, 72), std::pair(192, 96)}) {
    for (LrpeType position : {LrpeType::kNone, LrpeType::kRotate}) {
      SCOPED_TRACE(testing::Message() << d << " x " << e << " position "
                                      << static_cast<int>(position));
      LinearGpuConfig c = Plain(3, d, e);
      c.position = position;
      ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, parts, {.float_out = true}));
      LinearPrefillBatch rounded(c, parts, {});
      ASSERT_NO_FATAL_FAILURE(rounded.Run());
      LinearPrefillBatch floats(c, parts, {.float_out = true});
      ASSERT_NO_FATAL_FAILURE(floats.Run());
      for (int64_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(SameBits(rounded.Out(i),
                             Rounded(ElementType::kBFloat16, floats.Out(i))));
        EXPECT_TRUE(SameBits(rounded.State(i), floats.State(i)));
      }
    }
  }
}

TEST_F(LinearPrefillGpuTest, AnglesAreRightFarOut) {
  for (LrpeType position : {LrpeType::kRotate, LrpeType::kCosine}) {
    LinearGpuConfig c = Plain(2, 64, 64);
    c.position = position;
    c.first_position = 1000003;
    ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {{1, 0, 130}}, {}));
  }
}

// Steps after a prompt go on from its state.
TEST_F(LinearPrefillGpuTest, HandsOverToTheStep) {
  for (LrpeType position : kPositions) {
    for (int64_t count : {1, 64, 127, 640}) {
      SCOPED_TRACE(testing::Message()
                   << "position " << static_cast<int>(position) << " length "
                   << count);
      LinearGpuConfig c = Plain(3, 64, 128);
      c.position = position;
      c.q_activation = c.k_activation = Activation::kSilu;
      LinearPrefillBatch batch(c, {{1, 0, count}}, {.fresh = true});
      ASSERT_NO_FATAL_FAILURE(batch.Run());
      constexpr int64_t kSteps = 64;
      const PrefillOracle want(c, {1, 0, count + kSteps}, true);
      const int64_t width = c.heads * c.value_dim;
      std::vector<float> got;
      std::vector<double> oracle(want.out.end() - kSteps * width,
                                 want.out.end());
      for (int64_t t = 0; t < kSteps; ++t) {
        DeviceTensor token(c.io, LinearToken(c, 1, count + t));
        DeviceTensor out(c.io, std::vector<float>(width, kNaN));
        DeviceBuffer<int32_t> slot(std::vector<int32_t>{batch.Slot(0)});
        DeviceBuffer<int64_t> at(std::vector<int64_t>{count + t});
        const LinearPrefillParams prompt = batch.Params();
        LinearStepParams p = {};
        p.num_heads = c.heads;
        p.head_dim = c.head_dim;
        p.value_dim = c.value_dim;
        p.io_type = c.io;
        p.q = token.data();
        p.k = static_cast<char*>(token.data()) + c.heads * c.head_dim * 2;
        p.v = static_cast<char*>(token.data()) + c.heads * c.head_dim * 4;
        p.stride = c.token_elements();
        p.out = out.data();
        p.out_stride = width;
        p.max_rows = 1;
        p.slots = slot.data();
        p.positions = at.data();
        p.q_activation = c.q_activation;
        p.k_activation = c.k_activation;
        p.v_activation = c.v_activation;
        p.position = c.position;
        p.phase_steps = prompt.phase_steps;
        p.scale = c.scale;
        p.decay = prompt.decay;
        p.states = prompt.states;
        p.slot_stride = prompt.slot_stride;
        ASSERT_EQ(LaunchLinearStep(p, nullptr), cudaSuccess);
        const std::vector<float> row = out.Read();
        got.insert(got.end(), row.begin(), row.end());
      }
      const double error = WorstHeadError(got, oracle, c.heads, c.value_dim);
      const double state = WorstHeadError(batch.State(0), want.state, c.heads,
                                          c.key_dim() * c.value_dim);
      EXPECT_LE(error, kTolerance);
      EXPECT_LE(state, kTolerance);
    }
  }
}

// Cut at a multiple of the chunk, a prompt has the same bits; cut elsewhere,
// the same result within rounding.
TEST_F(LinearPrefillGpuTest, APromptMayBeCutAnywhere) {
  constexpr int64_t kCount = 300;
  for (const auto& [position, first] :
       {std::pair(LrpeType::kRotate, 0), std::pair(LrpeType::kRotate, 7),
        std::pair(LrpeType::kNone, 0), std::pair(LrpeType::kNone, 7)}) {
    LinearGpuConfig c = Plain(2, 128, 64);
    c.position = position;
    c.first_position = first;
    LinearPrefillBatch whole(c, {{1, 0, kCount}}, {});
    ASSERT_NO_FATAL_FAILURE(whole.Run());
    const std::vector<float> want = whole.Out(0);
    const std::vector<float> state = whole.State(0);
    for (int64_t cut : {1, 57, 64, 65, 121, 128, 192, 249, 256, 299}) {
      SCOPED_TRACE(testing::Message() << "from " << first << " cut " << cut);
      LinearPrefillBatch batch(c, {{1, 0, cut}}, {});
      ASSERT_NO_FATAL_FAILURE(batch.Run());
      std::vector<float> got = batch.Out(0);
      batch.Next({{1, cut, kCount - cut}});
      ASSERT_NO_FATAL_FAILURE(batch.Run());
      const std::vector<float> rest = batch.Out(0);
      got.insert(got.end(), rest.begin(), rest.end());
      if ((first + cut) % kLinearPrefillChunk == 0) {
        EXPECT_TRUE(SameBits(got, want));
        EXPECT_TRUE(SameBits(batch.State(0), state));
      } else {
        const std::vector<double> out(want.begin(), want.end());
        const std::vector<double> last(state.begin(), state.end());
        EXPECT_LE(WorstHeadError(got, out, c.heads, c.value_dim), kTolerance);
        EXPECT_LE(WorstHeadError(batch.State(0), last, c.heads,
                                 c.key_dim() * c.value_dim),
                  kTolerance);
      }
    }
  }
}

// Alone and among enough others for a different plan.
TEST_F(LinearPrefillGpuTest, ARowAloneHasTheSameBits) {
  const LinearGpuConfig c = Plain(9, 64, 128);
  std::vector<PromptPart> parts;
  for (int64_t i = 0; i < 16; ++i) parts.push_back({i, i, 100 + 17 * i});
  LinearPrefillBatch all(c, parts, {});
  ASSERT_NO_FATAL_FAILURE(all.Run());
  for (int64_t i : {0, 7, 15}) {
    LinearPrefillBatch alone(c, {parts[i]}, {});
    ASSERT_NO_FATAL_FAILURE(alone.Run());
    EXPECT_TRUE(SameBits(all.Out(i), alone.Out(0))) << i;
    EXPECT_TRUE(SameBits(all.State(i), alone.State(0))) << i;
  }
}

// The last wave's units have two blocks each, the others one: with one or three
// tiles of columns a head, rows without tokens, and sizes that fill no tile.
TEST_F(LinearPrefillGpuTest, LastWaveMatchesFloat64) {
  int multiprocessors = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&multiprocessors,
                                   cudaDevAttrMultiProcessorCount, 0),
            cudaSuccess);
  for (const auto& [heads, d, e] :
       {std::tuple(5, 40, 40), std::tuple(3, 104, 136)}) {
    SCOPED_TRACE(testing::Message() << heads << " heads " << d << " x " << e);
    const LinearGpuConfig c = Plain(heads, d, e);
    const int tiles = (e + 63) / 64;
    // Rows, with the two that are none of the parts: a little over a wave, so
    // that the last part with tokens has two blocks for each unit.
    const int64_t rows =
        (multiprocessors + heads * tiles) / (heads * tiles) + 4;
    const LinearChunksPlan plan =
        PlanLinearChunks(d, e, heads, rows, multiprocessors, 227 * 1024);
    ASSERT_EQ(plan.turns, 2);
    ASSERT_GT(plan.lone, 0);
    ASSERT_LE(plan.lone, heads * tiles * (rows - 4));
    std::vector<PromptPart> parts;
    for (int64_t i = 0; i + 2 < rows; ++i) {
      parts.push_back({i + 1, i, i % 5 == 2 || i + 3 == rows ? 0 : 60 + 7 * i});
    }
    parts[rows - 4].count = 200;
    ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, parts, {}));
    ASSERT_NO_FATAL_FAILURE(
        ExpectOracle(c, parts, {.fresh = true, .float_out = true}));
  }
}

// Alone, a row's blocks take turns with its chunks, many times around their
// rings; in a batch they do not, or only in its last wave.
TEST_F(LinearPrefillGpuTest, ALongRowAloneHasTheSameBits) {
  for (const int64_t d : {64, 128}) {
    for (const int64_t first : {0, 7}) {
      SCOPED_TRACE(testing::Message() << d << " from " << first);
      const auto plan = [d](int64_t rows) {
        return PlanLinearChunks(d, 128, 2, rows, 132, 227 * 1024);
      };
      const LinearGpuConfig c = Plain(2, d, 128);
      const PromptPart part = {1, first, 4097};
      ASSERT_EQ(plan(1).turns, 2);
      ASSERT_EQ(plan(1).lone, 0);
      ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {part}, {}));
      LinearPrefillBatch alone(c, {part}, {});
      ASSERT_NO_FATAL_FAILURE(alone.Run());
      // Rows, with the two that are none of the parts.
      constexpr int64_t kRows = 37;
      ASSERT_EQ(plan(kRows).turns, 2);
      ASSERT_EQ(plan(kRows).lone, 132);
      ASSERT_EQ(plan(kRows - 4).turns, 1);
      for (const int64_t at : {0, 16, 34}) {
        const int64_t rows = at == 16 ? kRows - 4 : kRows;
        std::vector<PromptPart> parts;
        for (int64_t i = 0; i + 2 < rows; ++i) {
          parts.push_back({2 + i, i, 70 + i});
        }
        parts[at] = part;
        LinearPrefillBatch all(c, parts, {});
        ASSERT_NO_FATAL_FAILURE(all.Run());
        EXPECT_TRUE(SameBits(all.Out(at), alone.Out(0))) << at;
        EXPECT_TRUE(SameBits(all.State(at), alone.State(0))) << at;
      }

      const int64_t cut = 2048 - first;
      LinearPrefillBatch halves(c, {{1, first, cut}}, {});
      ASSERT_NO_FATAL_FAILURE(halves.Run());
      std::vector<float> got = halves.Out(0);
      halves.Next({{1, first + cut, 4097 - cut}});
      ASSERT_NO_FATAL_FAILURE(halves.Run());
      const std::vector<float> rest = halves.Out(0);
      got.insert(got.end(), rest.begin(), rest.end());
      EXPECT_TRUE(SameBits(got, alone.Out(0)));
      EXPECT_TRUE(SameBits(halves.State(0), alone.State(0)));
    }
  }
}

// Every row is long, so blocks follow each other while memory is busy, each
// many times around its rings: all with a unit of their own, or two in the last
// wave.
TEST_F(LinearPrefillGpuTest, LongRowsEverywhereHaveTheSameBits) {
  for (const auto& [heads, rows, turns] :
       {std::tuple(16, 8, 1), std::tuple(4, 22, 2)}) {
    SCOPED_TRACE(testing::Message() << heads << " heads, " << rows << " rows");
    const LinearChunksPlan plan =
        PlanLinearChunks(128, 128, heads, rows, 132, 227 * 1024);
    ASSERT_EQ(plan.turns, turns);
    // The last part's blocks are in the last wave.
    ASSERT_LE(plan.lone, heads * 2 * (rows - 3));
    const LinearGpuConfig c = Plain(heads, 128, 128);
    std::vector<PromptPart> parts;
    for (int64_t i = 0; i + 2 < rows; ++i) {  // two rows are none of the parts
      parts.push_back({i + 1, 5 * i, 1500 + 37 * i});
    }
    LinearPrefillBatch all(c, parts, {});
    ASSERT_NO_FATAL_FAILURE(all.Run());
    for (const int64_t at : {0, rows / 2, rows - 3}) {
      LinearPrefillBatch alone(c, {parts[at]}, {});
      ASSERT_NO_FATAL_FAILURE(alone.Run());
      EXPECT_TRUE(SameBits(all.Out(at), alone.Out(0))) << at;
      EXPECT_TRUE(SameBits(all.State(at), alone.State(0))) << at;
    }
  }
}

// A key that is not finite spoils nothing before it.
TEST_F(LinearPrefillGpuTest, InfinityDoesNotReachBack) {
  const LinearGpuConfig c = Plain(1, 64, 64);
  LinearPrefillBatch finite(c, {{1, 0, 100}}, {});
  ASSERT_NO_FATAL_FAILURE(finite.Run());
  const std::vector<float> want = finite.Out(0);
  LinearPrefillBatch batch(c, {{1, 0, 100}}, {});
  const LinearPrefillParams p = batch.Params();
  DeviceTensor key(c.io, {INFINITY});
  void* at = static_cast<char*>(const_cast<void*>(p.k)) + 50 * p.stride * 2;
  ASSERT_EQ(cudaMemcpy(at, key.data(), 2, cudaMemcpyDeviceToDevice),
            cudaSuccess);
  ASSERT_NO_FATAL_FAILURE(batch.Run());
  const std::vector<float> got = batch.Out(0);
  EXPECT_TRUE(SameBits({got.data(), 50 * 64}, {want.data(), 50 * 64}));
  EXPECT_FALSE(std::isfinite(got[51 * 64]));
}

TEST_F(LinearPrefillGpuTest, RefusesWhatItDoesNotSupport) {
  LinearPrefillBatch batch(Plain(2, 64, 64), {{1, 0, 3}}, {});
  const LinearPrefillParams good = batch.Params();
  const auto refused = [](const LinearPrefillParams& p) {
    return LaunchLinearPrefill(p, nullptr) == cudaErrorInvalidValue;
  };
  for (int64_t dim : {0, 4, 12, 264}) {
    LinearPrefillParams p = good;
    p.head_dim = dim;
    EXPECT_TRUE(refused(p)) << dim;
    p = good;
    p.value_dim = dim;
    EXPECT_TRUE(refused(p)) << dim;
  }
  for (int missing = 0; missing < 8; ++missing) {
    LinearPrefillParams p = good;
    if (missing == 0) p.q = nullptr;
    if (missing == 1) p.k = nullptr;
    if (missing == 2) p.v = nullptr;
    if (missing == 3) p.out = nullptr;
    if (missing == 4) p.query_start = nullptr;
    if (missing == 5) p.slots = nullptr;
    if (missing == 6) p.positions = nullptr;
    if (missing == 7) p.states = nullptr;
    EXPECT_TRUE(refused(p)) << missing;
  }
  for (int which = 0; which < 5; ++which) {
    LinearPrefillParams p = good;
    if (which == 0) p.q = Misaligned(p.q);
    if (which == 1) p.k = Misaligned(p.k);
    if (which == 2) p.v = Misaligned(p.v);
    if (which == 3) p.out = Misaligned(p.out);
    if (which == 4) p.states = Misaligned(p.states);
    EXPECT_TRUE(refused(p)) << which;
  }
  LinearPrefillParams p = good;
  p.position = LrpeType::kRotate;
  p.phase_steps = nullptr;
  EXPECT_TRUE(refused(p));
  p = good;
  p.stride += 4;
  EXPECT_TRUE(refused(p));
  p = good;
  p.max_rows = 70000;
  EXPECT_TRUE(refused(p));
  p.max_rows = 0;
  EXPECT_EQ(LaunchLinearPrefill(p, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace recurve
