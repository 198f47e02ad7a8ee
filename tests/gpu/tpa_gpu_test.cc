// TPA decode on the GPU against float64, and against itself bit for bit.

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "tests/gpu/tpa_decode_fixture.h"
#include "tests/gpu/tpa_gpu_testing.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

class TpaShapeGpuTest
    : public TpaGpuTest,
      public testing::WithParamInterface<std::tuple<TpaElement, TpaShape>> {};

TEST_P(TpaShapeGpuTest, MatchesFloat64) {
  const TpaGpuConfig config = {std::get<1>(GetParam()),
                               std::get<0>(GetParam())};
  Check(config, Make(config, {0, 1, 63, 64, 65, 129, 600}));
}

INSTANTIATE_TEST_SUITE_P(Shapes, TpaShapeGpuTest,
                         testing::Combine(testing::Values(TpaElement::kBFloat16,
                                                          TpaElement::kFloat16),
                                          testing::ValuesIn(kShapes)));

TEST_F(TpaGpuTest, WithoutPosition) {
  const TpaGpuConfig config = {kShapes[2], TpaElement::kBFloat16,
                               LrpeType::kNone};
  Check(config, Make(config, {200, 1}));
}

TEST_F(TpaGpuTest, MatchesFloat64AtLongLengths) {
  for (const TpaShape& shape :
       {kShapes[0], kShapes[1], kShapes[2], kHeadRowsShape}) {
    const TpaGpuConfig config = {shape};
    Check(config, Make(config, {8191, 512, 513, 3000}));
  }
  const TpaGpuConfig config = {{2, 32, 32, 2, 1}};
  Check(config, Make(config, {140000, 8193, 33000}));
}

TEST_F(TpaGpuTest, BitsDoNotDependOnTheBatch) {
  for (const TpaShape& shape :
       {kShapes[0], kShapes[1], kShapes[4], kHeadRowsShape}) {
    const TpaGpuConfig config = {shape};
    SCOPED_TRACE(Describe(config));
    const std::vector<int> lengths = {1000, 0, 63, 4100, 64, 65, 1, 300, 2048};
    const Sequences sequences = MakeFarApart(config, lengths);
    TpaGpuBatch batch(config, Pointers(sequences));
    const std::vector<float> all = batch.Decode(TpaDecodeForm::kParallelBn);
    const size_t width = shape.num_heads * shape.value_dim;
    for (size_t b = 0; b < lengths.size(); ++b) {
      TpaGpuBatch alone(config, {sequences[b].get()});
      for (TpaDecodeForm form : kForms) {
        EXPECT_TRUE(
            SameBits(alone.Decode(form), {all.data() + b * width, width}))
            << Name(form) << " of " << lengths[b];
      }
    }
  }
}

// However many blocks share the work.
TEST_F(TpaGpuTest, BitsDoNotDependOnTheBlocks) {
  for (const TpaShape& shape :
       {kShapes[0], kShapes[1], kShapes[4], kHeadRowsShape}) {
    const TpaGpuConfig config = {shape};
    SCOPED_TRACE(Describe(config));
    const Sequences sequences = MakeFarApart(config, {9000, 700, 40});
    TpaGpuBatch batch(config, Pointers(sequences));
    TpaDecodePlan plan = batch.Plan(TpaDecodeForm::kParallelBn);
    const std::vector<float> want = batch.Decode(plan);
    for (int blocks : {1, 2, 5, 31, 100}) {
      plan.blocks = blocks;
      EXPECT_TRUE(SameBits(batch.Decode(plan), want)) << blocks << " blocks";
    }
  }
}

// Nor how many columns a block has, or the kernel that it runs room for.
TEST_F(TpaGpuTest, BitsDoNotDependOnTheColumnsOfABlock) {
  for (const auto& [heads, element] : {std::pair(41, TpaElement::kBFloat16),
                                       std::pair(47, TpaElement::kFloat16),
                                       std::pair(47, TpaElement::kBFloat16),
                                       std::pair(48, TpaElement::kFloat16),
                                       std::pair(53, TpaElement::kBFloat16),
                                       std::pair(61, TpaElement::kFloat16),
                                       std::pair(61, TpaElement::kBFloat16),
                                       std::pair(64, TpaElement::kFloat16),
                                       std::pair(70, TpaElement::kFloat16),
                                       std::pair(78, TpaElement::kFloat16),
                                       std::pair(128, TpaElement::kFloat16)}) {
    for (int64_t rank : {1, 2, 3}) {
      const TpaGpuConfig config = {{heads, 64, 64, 6, rank}, element};
      SCOPED_TRACE(Describe(config));
      const Sequences sequences =
          MakeFarApart(config, {2048, 700, 1, 65, 2500});
      TpaGpuBatch batch(config, Pointers(sequences));
      TpaDecodePlan plan =
          batch.Plan(TpaDecodeForm::kParallelBn, TpaContexts::kAny);
      const std::vector<float> want = batch.Decode(plan);
      EXPECT_TRUE(SameBits(batch.Decode(TpaDecodeForm::kParallelBh), want));
      // Nor whether they are columns or rows.
      EXPECT_TRUE(SameBits(batch.Decode(TpaDecodeForm::kParallelBn), want));
      EXPECT_TRUE(SameBits(batch.Decode(TpaDecodeForm::kParallelB), want));
      TpaDecodePlan few =
          batch.Plan(TpaDecodeForm::kParallelBn, TpaContexts::kFew);
      EXPECT_TRUE(SameBits(batch.Decode(few), want)) << "few";
      few.blocks = 2;  // with whole rows of several segments
      EXPECT_TRUE(SameBits(batch.Decode(few), want)) << "few, two blocks";
      // As before there were kernels for fewer columns.
      if (!plan.hopper || plan.variant == 3) continue;
      plan.variant = 3;
      plan.stages -= 2;  // room for the unused columns
      EXPECT_TRUE(SameBits(batch.Decode(plan), want)) << "40 columns";
    }
  }
}

// Nor whether the blocks of a row are a cluster.
TEST_F(TpaGpuTest, BitsDoNotDependOnClusters) {
  TpaDevice device = {};
  ASSERT_EQ(GetTpaDevice(&device), cudaSuccess);
  if (!device.hopper)
    GTEST_SKIP() << "clusters of blocks are of compute capability 9.0";
  ASSERT_GT(device.clusters, 0);
  for (int64_t heads : {1, 17, 24, 25, 47, 61, 78, 128}) {
    for (int64_t rank : {1, 2}) {
      const TpaGpuConfig config = {
          {heads, 64, 64, 6, rank},
          heads % 2 == 0 ? TpaElement::kFloat16 : TpaElement::kBFloat16};
      SCOPED_TRACE(Describe(config));
      for (const std::vector<int>& lengths :
           {std::vector<int>{1}, std::vector<int>{63}, std::vector<int>{64},
            std::vector<int>{65}, std::vector<int>{127}, std::vector<int>{128},
            std::vector<int>{129}, std::vector<int>{257, 512},
            std::vector<int>{513, 640}, std::vector<int>{1919, 1920},
            std::vector<int>{0, 1921}, std::vector<int>{2048, 0},
            std::vector<int>{0, 0}, std::vector<int>{2047, 2048},
            std::vector<int>{2049}, std::vector<int>{2305, 3000},
            std::vector<int>{4095, 4096}}) {
        const auto rows = static_cast<int>(lengths.size());
        if (rows > TpaShortRows(config.shape, device)) continue;
        const Sequences sequences = MakeFarApart(config, lengths);
        TpaGpuBatch batch(config, Pointers(sequences));
        const TpaDecodePlan plan =
            batch.Plan(TpaDecodeForm::kParallelBn, TpaContexts::kShort);
        ASSERT_GT(plan.blocks, 0);
        ASSERT_EQ(plan.cluster_blocks, kTpaClusterBlocks);
        const std::vector<float> want =
            batch.Decode(TpaDecodeForm::kParallelBn);
        EXPECT_TRUE(SameBits(batch.Decode(plan), want)) << lengths[0];
      }
    }
  }
}

// Nor how rows share them: each row some of its own, each block some rows, or
// all rows in one line.
TEST_F(TpaGpuTest, BitsDoNotDependOnTheSharing) {
  std::vector<int> mixed;
  for (int i = 0; i < 40; ++i) mixed.push_back(100 + 173 * (7 * i % 40) % 3000);
  std::vector<int> padded(32, 1088);
  std::fill(padded.begin() + 19, padded.end(), 0);
  std::vector<int> behind(300, 0);  // most blocks clear two or three of these
  std::fill(behind.begin(), behind.begin() + 33, 200);
  std::vector<int> many(264, 150);
  many[77] = 0;
  std::vector<int> uneven(140, 64);
  uneven[3] = 5000;
  const TpaGpuConfig config = {{3, 32, 32, 2, 1}};
  for (const std::vector<int>& lengths :
       {std::vector<int>(32, 2112), padded, std::vector<int>(8, 1984),
        std::vector<int>(128, 300), mixed, behind, many, uneven,
        std::vector<int>{0, 0, 700, 0}, std::vector<int>{0, 0}}) {
    SCOPED_TRACE(testing::Message()
                 << lengths.size() << " rows of " << lengths.front());
    const Sequences sequences = MakeFarApart(config, lengths);
    TpaGpuBatch batch(config, Pointers(sequences));
    const std::vector<float> want = batch.Decode(TpaDecodeForm::kParallelB);
    EXPECT_TRUE(SameBits(batch.Decode(TpaDecodeForm::kParallelBn), want));
    TpaDecodePlan plan = batch.Plan(TpaDecodeForm::kParallelBn);
    for (int blocks : {3, 33, 64}) {
      plan.blocks = blocks;
      EXPECT_TRUE(SameBits(batch.Decode(plan), want)) << blocks << " blocks";
    }
  }
}

// Nor how many of their factors are under way.
TEST_F(TpaGpuTest, BitsDoNotDependOnTheStages) {
  for (const TpaShape& shape :
       {kShapes[0], kShapes[1], kShapes[4], kHeadRowsShape}) {
    const TpaGpuConfig config = {shape};
    const Sequences sequences = MakeFarApart(config, {700, 65});
    TpaGpuBatch batch(config, Pointers(sequences));
    TpaDecodePlan plan = batch.Plan(TpaDecodeForm::kParallelBn);
    const std::vector<float> want = batch.Decode(plan);
    for (int stages = 3; stages <= std::min(plan.stages, 5); ++stages) {
      TpaDecodePlan few = plan;
      few.stages = stages;
      if (plan.early_keys == kTpaInOrder && stages < 2 * shape.kv_rank) {
        continue;  // refused, see below
      }
      // As the planner does where there is no room.
      if (stages < shape.kv_rank + plan.early_keys) few.early_keys = 0;
      EXPECT_TRUE(SameBits(batch.Decode(few), want))
          << Describe(config) << ", " << stages << " stages";
    }
  }
}

// A few rows of long, unequal lengths, of which blocks have pieces of one or
// two: as each row by one block.
TEST_F(TpaGpuTest, UnequalLongLengthsHaveTheBitsOfOneBlock) {
  constexpr int kLongest = 2500;
  const TpaGpuConfig config = {kShapes[1]};
  const Sequences sequences =
      MakeFarApart(config, std::vector<int>(6, kLongest));
  TestRandom random(11);
  for (size_t rows = 2; rows <= sequences.size(); ++rows) {
    std::vector<const TpaSequence*> some = Pointers(sequences);
    some.resize(rows);
    TpaGpuBatch batch(config, some);
    for (int draw = 0; draw < 30; ++draw) {
      std::vector<int32_t> lengths;
      for (size_t i = 0; i < rows; ++i)
        lengths.push_back(static_cast<int32_t>(random.Uniform(1, kLongest)));
      batch.SetLengths(lengths);
      const std::vector<float> want = batch.Decode(TpaDecodeForm::kParallelB);
      const std::vector<float> got = batch.Decode(TpaDecodeForm::kParallelBn);
      EXPECT_TRUE(SameBits(got, want)) << testing::PrintToString(lengths);
      EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](float x) {
        return std::isfinite(x);
      })) << testing::PrintToString(lengths);
    }
  }
}

// Nor on the prefetch for the next launch: nothing, less than a piece, not a
// multiple of one, more than is ever prefetched.
TEST_F(TpaGpuTest, BitsDoNotDependOnTheNextLaunch) {
  constexpr int64_t kMore = kTpaNextBytes + 4096 + 48;
  const std::vector<uint8_t> zeros(kMore);
  DeviceBuffer<uint8_t> next(zeros);
  for (TpaDecodeForm form : kForms) {
    const TpaGpuConfig config = {kShapes[1]};
    const Sequences sequences = Make(config, {700, 65, 0});
    TpaGpuBatch batch(config, Pointers(sequences));
    const std::vector<float> want = batch.Decode(form);
    for (int64_t bytes : {int64_t{0}, int64_t{48}, int64_t{4096 + 48}, kMore}) {
      batch.AskFor(next.data(), bytes);
      EXPECT_TRUE(SameBits(batch.Decode(form), want)) << bytes << " bytes";
    }
  }
}

// The kernel for GPUs before Hopper, which runs on later ones too.
TEST_F(TpaGpuTest, PortableKernelMatchesFloat64) {
  for (const TpaShape& shape : kShapes) {
    for (TpaElement element : {TpaElement::kBFloat16, TpaElement::kFloat16}) {
      const TpaGpuConfig config = {shape, element};
      Check(config, Make(config, {0, 1, 63, 64, 65, 129, 600}), true);
    }
  }
  const TpaGpuConfig config = {kShapes[1]};
  Check(config, Make(config, {3000, 66, 5}, 3), true);
}

// Several new tokens: each gives what it would have given alone, when it was
// the last.
TEST_F(TpaGpuTest, NewTokensMatchStepwiseDecode) {
  for (const TpaShape& shape :
       {kShapes[0], kShapes[1], kShapes[6], kHeadRowsShape}) {
    for (int queries : {2, 3, 8}) {
      const TpaGpuConfig config = {shape};
      SCOPED_TRACE(testing::Message() << Describe(config) << ", " << queries);
      const Sequences sequences = Make(config, {5, 66, 515, 1030}, queries);
      const std::vector<float> got = Check(config, sequences);
      const int64_t width = shape.num_heads * shape.value_dim;
      for (size_t b = 0; b < sequences.size(); ++b) {
        for (int t = 0; t < queries; ++t) {
          TpaSequence one = *sequences[b];
          one.queries = 1;
          one.length -= queries - 1 - t;
          if (one.length <= 0) continue;
          const auto take = [t](std::vector<float>& v, int64_t n) {
            v = std::vector<float>(v.begin() + t * n, v.begin() + (t + 1) * n);
          };
          take(one.a_q, shape.q_rank * shape.num_heads);
          take(one.b_q, shape.q_rank * shape.head_dim);
          take(one.cos, shape.head_dim / 2);
          take(one.sin, shape.head_dim / 2);
          TpaGpuBatch alone(config, {&one});
          EXPECT_TRUE(SameBits(alone.Decode(TpaDecodeForm::kParallelBn),
                               {got.data() + (b * queries + t) * width,
                                static_cast<size_t>(width)}))
              << "length " << sequences[b]->length << " query " << t;
        }
      }
    }
  }
}

// Outputs of 16 bits are those of float32, rounded, and nothing is written
// between rows; also where fours of them are not aligned.
TEST_F(TpaGpuTest, OutputsOf16Bits) {
  constexpr uint16_t kGap = 0x1234;
  for (const auto& [shape, element] :
       std::vector<std::pair<TpaShape, TpaElement>>{
           {{78, 64, 64, 6, 2}, TpaElement::kBFloat16},
           {{17, 40, 8, 5, 1}, TpaElement::kBFloat16},
           {{32, 128, 128, 16, 1}, TpaElement::kFloat16}}) {
    const TpaGpuConfig config = {shape, element};
    const std::vector<int> lengths = {0, 1, 64, 600, 5000};
    const Sequences sequences = Make(config, lengths);
    const int64_t width = shape.num_heads * shape.value_dim;
    for (const TpaDecodeForm form : kForms) {
      TpaGpuBatch batch(config, Pointers(sequences));
      const std::vector<float> want = batch.Decode(form);
      for (const int64_t gap : {3, 4}) {
        DeviceBuffer<uint16_t> out(
            std::vector<uint16_t>(lengths.size() * (width + gap), kGap));
        const TpaDecodePlan plan = batch.Plan(form);
        TpaCudaDecodeParams params = batch.Params(plan);
        params.out_type = TpaWeightType(element);
        params.out = out.data();
        params.out_stride = width + gap;
        ASSERT_EQ(batch.Launch(params, plan, nullptr), cudaSuccess);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        const std::vector<uint16_t> got = out.Read();
        for (size_t i = 0; i < got.size(); ++i) {
          const auto row = static_cast<int64_t>(i) / (width + gap);
          const auto at = static_cast<int64_t>(i) % (width + gap);
          uint16_t expected = kGap;
          if (at < width) {
            const float value = want[row * width + at];
            expected = element == TpaElement::kBFloat16 ? FloatToBFloat16(value)
                                                        : FloatToFloat16(value);
          }
          ASSERT_EQ(got[i], expected) << Describe(config) << ", row " << row
                                      << ", " << at << ", gap " << gap;
        }
      }
    }
  }
}

// One schedule serves all layers of a step: what a launch counts, it counts
// back.
TEST_F(TpaGpuTest, LaunchesShareASchedule) {
  const TpaGpuConfig config = {kShapes[0]};
  const Sequences sequences = Make(config, {9000, 0, 700, 40});
  TpaGpuBatch batch(config, Pointers(sequences));
  const TpaDecodePlan plan = batch.Plan(TpaDecodeForm::kParallelBn);
  const std::vector<float> want = batch.Decode(plan);
  const TpaCudaDecodeParams params = batch.Params(plan);
  ASSERT_EQ(batch.Launch(params, plan, nullptr), cudaSuccess);
  for (int layer = 0; layer < 20; ++layer) {
    ASSERT_EQ(LaunchTpaDecode(params, plan, nullptr), cudaSuccess);
  }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(SameBits(batch.Compact(), want));
}

TEST_F(TpaGpuTest, OneGraphReplaysWhileContextsGrow) {
  const TpaGpuConfig config = {kShapes[1]};
  const Sequences sequences = Make(config, {1400, 700, 65});
  for (TpaDecodeForm form : kForms) {
    TpaGpuBatch batch(config, Pointers(sequences));
    const TpaDecodePlan plan = batch.Plan(form);
    batch.SetLengths({3, 0, 64});
    const TpaCudaDecodeParams params = batch.Params(plan);
    cudaStream_t stream;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
              cudaSuccess);
    ASSERT_EQ(batch.Launch(params, plan, stream), cudaSuccess);
    cudaGraph_t graph;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    cudaGraphExec_t exec;
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (const std::vector<int32_t>& lengths :
         {std::vector<int32_t>{3, 0, 64}, std::vector<int32_t>{4, 1, 65},
          std::vector<int32_t>{1400, 700, 1}}) {
      batch.SetLengths(lengths);
      batch.Share(plan);
      ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      const std::vector<float> got = batch.Compact();
      const size_t width = config.shape.num_heads * config.shape.value_dim;
      for (size_t b = 0; b < lengths.size(); ++b) {
        TpaSequence now = *sequences[b];
        now.length = lengths[b];
        TpaGpuBatch alone(config, {&now});
        EXPECT_TRUE(SameBits({got.data() + b * width, width},
                             alone.Decode(TpaDecodeForm::kParallelB)))
            << Name(form) << " sequence " << b << " of " << lengths[b];
      }
    }
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }
}

// A sequence with NaN in it spoils itself alone.
TEST_F(TpaGpuTest, NonFiniteSequenceFailsAlone) {
  const TpaGpuConfig config = {kShapes[2]};
  Sequences sequences = Make(config, {300, 200, 100});
  const std::vector<float> want = Check(config, sequences);
  sequences[1]->b_v[70 * config.shape.kv_rank * config.shape.value_dim] = kNaN;
  TpaGpuBatch batch(config, Pointers(sequences));
  const size_t width = config.shape.num_heads * config.shape.value_dim;
  for (TpaDecodeForm form : kForms) {
    const std::vector<float> got = batch.Decode(form);
    EXPECT_TRUE(std::isnan(got[width]));
    EXPECT_TRUE(SameBits({got.data(), width}, {want.data(), width}));
    EXPECT_TRUE(SameBits({got.data() + 2 * width, width},
                         {want.data() + 2 * width, width}));
  }
}

TEST_F(TpaGpuTest, RefusesBadParameters) {
  const TpaGpuConfig config = {kShapes[2]};
  const Sequences sequences = Make(config, {70});
  TpaGpuBatch batch(config, Pointers(sequences));
  const TpaDecodePlan plan = batch.Plan(TpaDecodeForm::kParallelBn);
  const TpaCudaDecodeParams good = batch.Params(plan);
  const auto refused = [&](auto&& change) {
    TpaCudaDecodeParams params = good;
    change(params);
    return LaunchTpaDecode(params, plan, nullptr) == cudaErrorInvalidValue;
  };
  using Params = TpaCudaDecodeParams;
  EXPECT_TRUE(refused([](Params& p) {
    p.out_type = p.cache.element == TpaElement::kBFloat16
                     ? WeightType::kFloat16
                     : WeightType::kBFloat16;
  }));
  EXPECT_TRUE(refused([](Params& p) { p.shape.num_heads = 129; }));
  EXPECT_TRUE(refused([](Params& p) { p.shape.head_dim = 62; }));
  EXPECT_TRUE(refused([](Params& p) { p.rows = -1; }));
  EXPECT_TRUE(refused([](Params& p) { p.new_tokens = 9; }));
  EXPECT_TRUE(refused([](Params& p) { p.scratch_bytes -= 1; }));
  EXPECT_TRUE(refused([](Params& p) { p.cache.page_stride -= 16; }));
  EXPECT_TRUE(refused([](Params& p) { p.queries = nullptr; }));
  EXPECT_TRUE(refused([](Params& p) { p.cache.pages = nullptr; }));
  EXPECT_TRUE(refused([](Params& p) { p.cache.page_table = nullptr; }));
  EXPECT_TRUE(refused([](Params& p) { p.fresh_tokens = -1; }));
  EXPECT_TRUE(refused([](Params& p) { p.schedule = nullptr; }));
  EXPECT_TRUE(refused([](Params& p) { p.next_bytes = 16; }));
  EXPECT_TRUE(refused([](Params& p) { p.next_bytes = -1; }));
  EXPECT_TRUE(refused([](Params& p) {
    p.next = static_cast<const char*>(p.schedule) + 8;
    p.next_bytes = 16;
  }));
}

TEST_F(TpaGpuTest, RefusesBadPlansWithHeadsAsRows) {
  const TpaGpuConfig config = {kHeadRowsShape};
  const Sequences sequences = Make(config, {70});
  TpaGpuBatch batch(config, Pointers(sequences));
  const TpaDecodePlan good = batch.Plan(TpaDecodeForm::kParallelBn);
  if (!good.hopper) GTEST_SKIP() << "of compute capability 9.0";
  ASSERT_EQ(good.early_keys, kTpaInOrder);
  const TpaCudaDecodeParams params = batch.Params(good);
  const auto refused = [&](auto&& change) {
    TpaDecodePlan plan = good;
    change(plan);
    return LaunchTpaDecode(params, plan, nullptr) == cudaErrorInvalidValue;
  };
  using Plan = TpaDecodePlan;
  // It would wait for keys that wait for its values.
  EXPECT_TRUE(refused([](Plan& p) { p.stages = 3; }));
  EXPECT_TRUE(refused([](Plan& p) { p.early_keys = 2; }));
  EXPECT_TRUE(refused([](Plan& p) { p.early_keys = 0; }));
  EXPECT_TRUE(refused([](Plan& p) { p.variant = 5; }));
  EXPECT_TRUE(refused([](Plan& p) { p.hopper = false; }));
}

TEST_F(TpaGpuTest, QueriesRefuseBadParameters) {
  TpaCudaQueryParams good = {};
  good.shape = kShapes[2];
  DeviceBuffer<uint8_t> queries(
      std::vector<uint8_t>(TpaQueryBytes(good.shape, 1)));
  good.queries = queries.data();
  EXPECT_EQ(LaunchTpaQueries(good, nullptr), cudaSuccess);  // no tokens
  DeviceBuffer<float> factors(std::vector<float>(4096));
  good.a_q = good.b_q = good.cos = good.sin = factors.data();
  good.position = LrpeType::kRotate;
  const auto refused = [&](auto&& change) {
    TpaCudaQueryParams params = good;
    params.tokens = 1;
    change(params);
    return LaunchTpaQueries(params, nullptr) == cudaErrorInvalidValue;
  };
  using Params = TpaCudaQueryParams;
  EXPECT_TRUE(refused([](Params& p) { p.shape.num_heads = 129; }));
  EXPECT_TRUE(refused([](Params& p) { p.tokens = -1; }));
  EXPECT_TRUE(refused([](Params& p) { p.position = LrpeType::kCosine; }));
  EXPECT_TRUE(refused([](Params& p) { p.queries = nullptr; }));
  EXPECT_TRUE(refused([](Params& p) { p.queries = Misaligned(p.queries); }));
  EXPECT_TRUE(refused([](Params& p) { p.a_q = nullptr; }));
  EXPECT_TRUE(refused([](Params& p) { p.b_q = nullptr; }));
  EXPECT_TRUE(refused([](Params& p) { p.sin = nullptr; }));
}

}  // namespace
}  // namespace recurve
