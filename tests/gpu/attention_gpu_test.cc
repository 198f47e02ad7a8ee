// Append and decode of softmax attention on the GPU.
#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/attention_gpu_testing.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

using Rows = std::vector<AttentionGpuRow>;

constexpr WeightType kTypes[] = {WeightType::kBFloat16, WeightType::kFloat16,
                                 WeightType::kFloat32};

// {H, G, D, E}: groups of 1 to 16, every width of the kernels and sizes
// between, values narrower and wider than keys.
const AttentionTestConfig kDecodeConfigs[] = {
    {{1, 1, 64, 64}, LrpeType::kNone},
    {{16, 4, 256, 256}, LrpeType::kRotate, true, true},
    {{30, 30, 128, 128}, LrpeType::kRotate},
    {{8, 1, 128, 128}, LrpeType::kRotate, true},
    {{16, 1, 128, 128}, LrpeType::kNone, false, true},
    {{9, 1, 256, 256}, LrpeType::kRotate},
    {{12, 4, 96, 96}, LrpeType::kRotate, true, true},
    {{6, 2, 16, 16}, LrpeType::kRotate, false, false, 0.37},
    {{10, 2, 80, 112}, LrpeType::kRotate, true},
    {{14, 2, 208, 48}, LrpeType::kNone, false, true},
    {{3, 1, 48, 256}, LrpeType::kRotate, true},
};

// Relative error of decode: queries and weights are two terms of the type.
double DecodeTolerance(WeightType type) {
  return type == WeightType::kFloat32   ? 5e-6
         : type == WeightType::kFloat16 ? 2e-5
                                        : 1e-4;
}

class AttentionGpuTest : public GpuTest {
 protected:
  // Compares row `index` of `out` head by head.
  static void ExpectRow(const std::vector<float>& out, size_t index,
                        const AttentionGpuCache& cache,
                        const AttentionShape& shape, AttentionGpuRow row,
                        double tolerance) {
    const std::vector<double> want = cache.Oracle(row);
    for (int64_t h = 0; h < shape.num_heads; ++h) {
      const size_t dim = shape.value_dim;
      ASSERT_TRUE(RelativelyNear(
          {out.data() + index * want.size() + h * dim, dim},
          absl::MakeConstSpan(want).subspan(h * dim, dim), tolerance))
          << "row of " << row.length << " tokens, head " << h;
    }
  }
  static std::vector<float> RowOf(const std::vector<float>& out, size_t index,
                                  const AttentionShape& shape) {
    const size_t width = shape.num_heads * shape.value_dim;
    return {out.begin() + index * width, out.begin() + (index + 1) * width};
  }
};

TEST_F(AttentionGpuTest, AppendWritesItsTokensAndNothingElse) {
  for (const AttentionTestConfig& of : kDecodeConfigs) {
    for (WeightType type : kTypes) {
      const AttentionGpuConfig config = {of, type};
      SCOPED_TRACE(Describe(config));
      const AttentionTokens tokens(of, 67, 1);
      const AttentionTokens other(of, 3, 2);
      AttentionGpuCache cache(config, {&tokens, &other});
      cache.aligned = type != WeightType::kFloat16;
      cache.Append(0, 0, 66);
      cache.Append(0, 66, 67);
      for (int t : {0, 1, 63, 64, 65, 66}) {
        for (int64_t g = 0; g < of.shape.num_kv_heads; ++g) {
          std::vector<float> key;
          for (int64_t i = 0; i < of.shape.head_dim; ++i) {
            key.push_back(cache.Key(0, t, g, i));
          }
          ASSERT_TRUE(RelativelyNear(key, AttentionKeyOracle(tokens, t, g),
                                     AttentionRounding(type)))
              << "token " << t << " kv head " << g;
          for (int64_t i = 0; i < of.shape.value_dim; ++i) {
            ASSERT_EQ(
                cache.Value(0, t, g, i),
                RoundedTo(type,
                          tokens.Row(t)[tokens.v + g * of.shape.value_dim + i]))
                << "token " << t << " kv head " << g << " feature " << i;
          }
        }
      }
      const std::vector<uint8_t> raw = cache.RawPages();
      const std::vector<bool> used = cache.Used();
      for (size_t i = 0; i < raw.size(); ++i) {
        if (!used[i]) {
          ASSERT_EQ(raw[i], 0xff) << "byte " << i;
        }
      }
    }
  }
}

TEST_F(AttentionGpuTest, AppendFormsTheQueriesOfSomeRows) {
  for (WeightType type : kTypes) {
    const AttentionGpuConfig config = {kDecodeConfigs[1], type};
    const AttentionTokens tokens(config.of, 5, 16);
    AttentionGpuCache cache(config, {&tokens});
    const Rows rows = {{0, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 5}};
    const std::vector<uint8_t> all = cache.FormQueries(rows, 0, 5);
    const std::vector<uint8_t> some = cache.FormQueries(rows, 2, 2);
    const size_t one = all.size() / 5;
    EXPECT_EQ(some, std::vector<uint8_t>(all.begin() + 2 * one,
                                         all.begin() + 4 * one));
  }
}

TEST_F(AttentionGpuTest, DecodeMatchesFloat64) {
  for (const AttentionTestConfig& of : kDecodeConfigs) {
    for (WeightType type : kTypes) {
      const AttentionGpuConfig config = {of, type};
      SCOPED_TRACE(Describe(config));
      const AttentionTokens tokens(of, 1000, 3);
      AttentionGpuCache cache(config, {&tokens});
      cache.AppendAll();
      const Rows rows = {{0, 1},   {0, 2},   {0, 16},  {0, 17},
                         {0, 63},  {0, 64},  {0, 65},  {0, 127},
                         {0, 128}, {0, 129}, {0, 449}, {0, 1000}};
      const std::vector<float> out = cache.Decode(rows);
      for (size_t r = 0; r < rows.size(); ++r) {
        ExpectRow(out, r, cache, of.shape, rows[r], DecodeTolerance(type));
      }
    }
  }
}

// Tokens that have not been appended are NaN, in the last page too.
TEST_F(AttentionGpuTest, DecodeReadsNoTokenThatIsNotThere) {
  for (const AttentionTestConfig& of :
       {kDecodeConfigs[1], kDecodeConfigs[4], kDecodeConfigs[8]}) {
    for (WeightType type : kTypes) {
      const AttentionGpuConfig config = {of, type};
      SCOPED_TRACE(Describe(config));
      const AttentionTokens tokens(of, 400, 4);
      AttentionGpuCache cache(config, {&tokens});
      int done = 0;
      for (int length : {1, 15, 16, 17, 63, 64, 65, 130, 200, 319, 320, 321}) {
        cache.Append(0, done, length - 1);
        done = length;
        const std::vector<float> out = cache.Decode({{0, length}}, true);
        ExpectRow(out, 0, cache, of.shape, {0, length}, DecodeTolerance(type));
      }
    }
  }
}

TEST_F(AttentionGpuTest, DecodeOfLongContexts) {
  for (const AttentionTestConfig& of :
       {AttentionTestConfig{{2, 1, 64, 64}, LrpeType::kRotate},
        AttentionTestConfig{{4, 1, 256, 256}, LrpeType::kRotate, true, true},
        AttentionTestConfig{{2, 2, 128, 128}, LrpeType::kRotate}}) {
    for (WeightType type : kTypes) {
      const AttentionGpuConfig config = {of, type};
      SCOPED_TRACE(Describe(config));
      const AttentionTokens tokens(of, 8193, 5);
      AttentionGpuCache cache(config, {&tokens});
      cache.AppendAll();
      const Rows rows = {{0, 8192}, {0, 8193}, {0, 4000}, {0, 0}};
      const std::vector<float> out = cache.Decode(rows);
      for (size_t r = 0; r < rows.size(); ++r) {
        ExpectRow(out, r, cache, of.shape, rows[r], DecodeTolerance(type));
      }
    }
  }
}

// Maxima of pages that grow or fall by a lot.
TEST_F(AttentionGpuTest, DecodeOfRampedScores) {
  const AttentionTestConfig of = {{8, 2, 64, 64}, LrpeType::kNone};
  for (WeightType type : kTypes) {
    for (const auto& [from, to] :
         {std::pair(0.0, 60.0), std::pair(60.0, 0.0), std::pair(-200.0, 200.0),
          std::pair(200.0, -200.0)}) {
      const AttentionGpuConfig config = {of, type};
      SCOPED_TRACE(testing::Message()
                   << Describe(config) << " ramp " << from << " to " << to);
      AttentionTokens tokens(of, 640, 6);
      tokens.Ramp(from, to);
      AttentionGpuCache cache(config, {&tokens});
      cache.AppendAll();
      const Rows rows = {{0, 1}, {0, 64}, {0, 65}, {0, 640}};
      const std::vector<float> out = cache.Decode(rows);
      const double size = std::max(std::abs(from), std::abs(to));
      for (size_t r = 0; r < rows.size(); ++r) {
        ExpectRow(out, r, cache, of.shape, rows[r],
                  DecodeTolerance(type) * (1.0 + 0.3 * size));
      }
    }
  }
}

// Scores that differ by thousands, of one feature: their errors are the same
// for all tokens.
TEST_F(AttentionGpuTest, DecodeOfExtremeScores) {
  const AttentionTestConfig of = {
      {4, 2, 64, 64}, LrpeType::kNone, false, false, 0.125};
  for (WeightType type : kTypes) {
    for (float sign : {1.0f, -1.0f}) {
      const AttentionGpuConfig config = {of, type};
      SCOPED_TRACE(testing::Message() << Describe(config) << " " << sign);
      AttentionTokens tokens(of, 200, 7);
      for (int64_t t = 0; t < tokens.length; ++t) {
        float* row = tokens.Row(t);
        std::fill_n(row + tokens.q, 4 * 64, 0.0f);
        std::fill_n(row + tokens.k, 2 * 64, 0.0f);
        for (int h = 0; h < 4; ++h) row[tokens.q + 64 * h] = 8.0f;
        const float score = t < 64 ? -9984.0f : t < 128 ? 0.0f : 9984.0f;
        for (int g = 0; g < 2; ++g) row[tokens.k + 64 * g] = sign * score;
      }
      AttentionGpuCache cache(config, {&tokens});
      cache.AppendAll();
      const Rows rows = {{0, 1},   {0, 64},  {0, 65},
                         {0, 128}, {0, 129}, {0, 200}};
      const std::vector<float> out = cache.Decode(rows);
      for (size_t r = 0; r < rows.size(); ++r) {
        ExpectRow(out, r, cache, of.shape, rows[r], DecodeTolerance(type));
      }
    }
  }
}

TEST_F(AttentionGpuTest, DecodeRoundsOnce) {
  const AttentionTestConfig& of = kDecodeConfigs[1];
  const AttentionTokens tokens(of, 300, 8);
  AttentionGpuCache cache({of, WeightType::kBFloat16}, {&tokens});
  cache.AppendAll();
  const Rows rows = {{0, 300}, {0, 60}};
  const std::vector<float> exact = cache.Decode(rows);
  for (WeightType type : {WeightType::kBFloat16, WeightType::kFloat16}) {
    cache.out_type = type;
    std::vector<float> want = exact;
    for (float& value : want) value = RoundedTo(type, value);
    EXPECT_TRUE(SameBits(cache.Decode(rows), want));
  }
}

TEST_F(AttentionGpuTest, BitsDoNotDependOnTheBatchOrTheGpu) {
  for (const AttentionTestConfig& of : {kDecodeConfigs[1], kDecodeConfigs[2],
                                        kDecodeConfigs[5], kDecodeConfigs[6]}) {
    for (WeightType type : kTypes) {
      const AttentionGpuConfig config = {of, type};
      SCOPED_TRACE(Describe(config));
      const AttentionTokens a(of, 2500, 9);
      const AttentionTokens b(of, 129, 10);
      const AttentionTokens c(of, 64, 11);
      AttentionGpuCache cache(config, {&a, &b, &c});
      cache.AppendAll();
      Rows rows = {{0, 2500}, {1, 129}, {2, 64}, {1, 0}, {0, 1700}, {2, 1}};
      std::vector<std::vector<float>> alone;
      for (const AttentionGpuRow& row : rows) {
        alone.push_back(cache.Decode({row}));
      }
      for (float value : alone[3]) ASSERT_EQ(value, 0.0f);
      const int blocks = cache.plan.blocks;
      for (int count : {blocks, 1, 2, 7, 131, 3 * blocks}) {
        cache.plan.blocks = count;
        for (int fresh : {1, 65, INT32_MAX}) {
          cache.fresh_tokens = fresh;
          cache.host_pages = fresh != 65;
          std::reverse(rows.begin(), rows.end());
          std::reverse(alone.begin(), alone.end());
          const std::vector<float> out = cache.Decode(rows);
          for (size_t r = 0; r < rows.size(); ++r) {
            ASSERT_TRUE(SameBits(RowOf(out, r, of.shape), alone[r]))
                << "row " << r << " with " << count << " blocks";
          }
        }
      }
      cache.plan.blocks = blocks;
      // Many rows, more than blocks.
      Rows many;
      for (int i = 0; i < 300; ++i) many.push_back(rows[i % rows.size()]);
      const std::vector<float> out = cache.Decode(many);
      for (size_t r = 0; r < many.size(); ++r) {
        ASSERT_TRUE(SameBits(RowOf(out, r, of.shape), alone[r % rows.size()]))
            << "row " << r << " of many";
      }
    }
  }
}

TEST_F(AttentionGpuTest, RepeatsToTheBit) {
  const AttentionTestConfig& of = kDecodeConfigs[1];
  const AttentionTokens tokens(of, 4097, 12);
  AttentionGpuCache cache({of, WeightType::kBFloat16}, {&tokens});
  cache.AppendAll();
  Rows rows;
  for (int i = 0; i < 8; ++i) rows.push_back({0, 4097 - 300 * i});
  const std::vector<float> want = cache.Decode(rows);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(SameBits(cache.Decode(rows), want));
}

TEST_F(AttentionGpuTest, GraphReplaysWhileContextsGrow) {
  for (WeightType type : kTypes) {
    const AttentionTestConfig& of = kDecodeConfigs[1];
    const AttentionTokens a(of, 2600, 13);
    const AttentionTokens b(of, 200, 14);
    AttentionGpuCache cache({of, type}, {&a, &b});
    cache.Append(0, 0, 2599);
    cache.Append(1, 0, 128);
    const std::vector<float> got =
        cache.Replay({{0, 1}, {1, 0}, {0, 0}}, {{0, 2600}, {1, 129}, {1, 0}});
    EXPECT_TRUE(SameBits(got, cache.Decode({{0, 2600}, {1, 129}, {1, 0}})));
    ExpectRow(got, 0, cache, of.shape, {0, 2600}, DecodeTolerance(type));
  }
}

TEST_F(AttentionGpuTest, DecodeRefusesWhatTheHeaderRulesOut) {
  const AttentionTestConfig& of = kDecodeConfigs[1];
  const AttentionTokens tokens(of, 1, 15);
  AttentionGpuCache cache({of, WeightType::kBFloat16}, {&tokens});
  cache.AppendAll();
  using Params = AttentionCudaDecodeParams;
  EXPECT_EQ(cache.TryDecode([](Params*, AttentionPlan*) {}), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::function<void(Params*, AttentionPlan*)> changes[] = {
      [](Params* p, AttentionPlan*) { p->rows = -1; },
      [](Params* p, AttentionPlan*) { p->rows = kAttentionMaxRows + 1; },
      [](Params* p, AttentionPlan*) { p->shape.num_heads = 8; },
      [](Params* p, AttentionPlan*) {
        p->cache.element = WeightType::kFloat16;
      },
      [](Params* p, AttentionPlan*) { p->cache.page_stride -= 16; },
      [](Params* p, AttentionPlan*) { p->cache.page_stride += 4; },
      [](Params* p, AttentionPlan*) { p->cache.page_table = nullptr; },
      [](Params* p, AttentionPlan*) { p->queries = nullptr; },
      [](Params* p, AttentionPlan*) { p->fresh_tokens = -1; },
      [](Params* p, AttentionPlan*) { p->out.data = nullptr; },
      [](Params* p, AttentionPlan*) { p->out.stride -= 16; },
      [](Params* p, AttentionPlan*) { p->out.gate_stride = 8; },
      [](Params* p, AttentionPlan*) { p->out.gate += 1; },
      [](Params* p, AttentionPlan*) { p->schedule = nullptr; },
      [](Params* p, AttentionPlan*) { p->scratch = Misaligned(p->scratch); },
      [](Params* p, AttentionPlan*) { p->scratch_bytes -= 1; },
      [](Params*, AttentionPlan* plan) { plan->blocks = 0; },
      [](Params*, AttentionPlan* plan) { plan->shape.head_dim = 128; },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    EXPECT_EQ(cache.TryDecode(changes[i]), cudaErrorInvalidValue) << i;
  }
}

// ---- prefill ----

double PrefillTolerance(WeightType type) {
  return type == WeightType::kFloat32   ? 5e-6
         : type == WeightType::kFloat16 ? 1.5e-3
                                        : 1e-2;
}

TEST_F(AttentionGpuTest, PrefillMatchesFloat64) {
  for (const AttentionTestConfig& of : kDecodeConfigs) {
    for (WeightType type : kTypes) {
      const AttentionGpuConfig config = {of, type};
      SCOPED_TRACE(Describe(config));
      for (int length : {1, 2, 63, 64, 65, 127, 128, 129, 193, 300}) {
        const AttentionTokens tokens(of, length, 20 + length);
        AttentionGpuCache cache(config, {&tokens});
        cache.AppendAll();
        const std::vector<float> out = cache.Prefill({{0, 0, length}});
        for (int row : {0, length / 3, length / 2, length - 1}) {
          ExpectRow(out, row, cache, of.shape, {0, row + 1},
                    PrefillTolerance(type));
        }
      }
    }
  }
}

TEST_F(AttentionGpuTest, PrefillOfLongContexts) {
  for (const AttentionTestConfig& of :
       {AttentionTestConfig{{4, 1, 64, 64}, LrpeType::kRotate},
        AttentionTestConfig{{2, 1, 256, 256}, LrpeType::kRotate, true, true},
        AttentionTestConfig{{2, 2, 128, 128}, LrpeType::kRotate}}) {
    for (WeightType type : kTypes) {
      const AttentionGpuConfig config = {of, type};
      SCOPED_TRACE(Describe(config));
      const AttentionTokens tokens(of, 8193, 21);
      AttentionGpuCache cache(config, {&tokens});
      cache.AppendAll();
      const int begin = type == WeightType::kFloat32 ? 7900 : 4000;
      const std::vector<float> out = cache.Prefill({{0, begin, 8193}});
      for (int row : {0, 100, 8192 - begin}) {
        ExpectRow(out, row, cache, of.shape, {0, begin + row + 1},
                  PrefillTolerance(type));
      }
    }
  }
}

TEST_F(AttentionGpuTest, PrefillOfRampedScores) {
  const AttentionTestConfig of = {{4, 2, 128, 128}, LrpeType::kNone};
  for (WeightType type : kTypes) {
    for (const auto& [from, to] :
         {std::pair(0.0, 60.0), std::pair(60.0, 0.0)}) {
      const AttentionGpuConfig config = {of, type};
      SCOPED_TRACE(testing::Message()
                   << Describe(config) << " ramp " << from << " to " << to);
      AttentionTokens tokens(of, 640, 22);
      tokens.Ramp(from, to);
      AttentionGpuCache cache(config, {&tokens});
      cache.AppendAll();
      const std::vector<float> out = cache.Prefill({{0, 0, 640}});
      for (int row : {0, 63, 64, 400, 639}) {
        ExpectRow(out, row, cache, of.shape, {0, row + 1},
                  6.0 * PrefillTolerance(type));
      }
    }
  }
}

TEST_F(AttentionGpuTest, PrefillBitsDoNotDependOnCutsOrTheBatch) {
  for (const AttentionTestConfig& of : {kDecodeConfigs[0], kDecodeConfigs[1],
                                        kDecodeConfigs[2], kDecodeConfigs[8]}) {
    for (WeightType type : kTypes) {
      const AttentionGpuConfig config = {of, type};
      SCOPED_TRACE(Describe(config));
      const AttentionTokens a(of, 500, 23);
      const AttentionTokens b(of, 70, 24);
      AttentionGpuCache cache(config, {&a, &b});
      cache.AppendAll();
      const std::vector<float> want = cache.Prefill({{0, 0, 500}});
      for (const std::vector<int>& cuts :
           {std::vector<int>{1, 500}, std::vector<int>{63, 64, 65, 500},
            std::vector<int>{128, 256, 384, 500},
            std::vector<int>{13, 77, 200, 499, 500}}) {
        std::vector<float> got;
        int begin = 0;
        for (int end : cuts) {
          const std::vector<float> part = cache.Prefill({{0, begin, end}});
          got.insert(got.end(), part.begin(), part.end());
          begin = end;
        }
        ASSERT_TRUE(SameBits(got, want)) << testing::PrintToString(cuts);
      }
      const std::vector<float> second = cache.Prefill({{1, 0, 70}});
      const std::vector<float> both =
          cache.Prefill({{1, 5, 70}, {0, 200, 500}, {1, 0, 0}, {1, 0, 5}});
      const int64_t width = of.shape.num_heads * of.shape.value_dim;
      std::vector<float> expected(second.begin() + 5 * width, second.end());
      expected.insert(expected.end(), want.begin() + 200 * width, want.end());
      expected.insert(expected.end(), second.begin(),
                      second.begin() + 5 * width);
      EXPECT_TRUE(SameBits(both, expected));
    }
  }
}

TEST_F(AttentionGpuTest, PrefillRoundsOnce) {
  for (const AttentionTestConfig& of : {kDecodeConfigs[1], kDecodeConfigs[6]}) {
    const AttentionTokens tokens(of, 150, 25);
    AttentionGpuCache cache({of, WeightType::kFloat16}, {&tokens});
    cache.AppendAll();
    const std::vector<float> exact = cache.Prefill({{0, 0, 150}});
    for (WeightType type : {WeightType::kBFloat16, WeightType::kFloat16}) {
      cache.out_type = type;
      std::vector<float> want = exact;
      for (float& value : want) value = RoundedTo(type, value);
      EXPECT_TRUE(SameBits(cache.Prefill({{0, 0, 150}}), want));
    }
  }
}

}  // namespace
}  // namespace recurve
