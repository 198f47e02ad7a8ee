// TPA prefill on the GPU against float64, and against itself bit for bit.

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/tpa/prefill/tpa_prefill_cuda.h"
#include "tests/gpu/tpa_gpu_testing.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

constexpr double kTolerance = 4e-3;
constexpr int64_t kQueryGap = 5;  // floats between tokens
constexpr int64_t kOutGap = 8;    // at least

// {H, D, E, Rq, R}: each width, odd heads, values narrower and wider than keys,
// sizes that are no multiple of 16, whole queries.
const TpaShape kShapes[] = {
    {32, 128, 128, 16, 1}, {4, 128, 128, 16, 2}, {78, 64, 64, 6, 2},
    {3, 64, 64, 4, 1},     {5, 64, 48, 6, 3},    {1, 32, 256, 1, 1},
    {3, 256, 32, 32, 4},   {33, 96, 40, 7, 2},   {7, 72, 88, 3, 1},
    {128, 128, 64, 2, 1},  {17, 40, 8, 5, 1},    {128, 256, 256, 3, 4},
    {12, 64, 128, 0, 2},   {45, 40, 64, 0, 1},   {10, 128, 24, 4, 3},
    {2, 8, 8, 1, 1},       {5, 48, 48, 3, 1},    {5, 48, 48, 4, 3},
    {3, 12, 12, 4, 2},     {9, 4, 60, 3, 1},     {21, 100, 4, 0, 4},
    {2, 252, 132, 5, 3},   {5, 20, 124, 2, 1},
};

// Queries [begin, end) of a sequence's; what comes after them is not cached.
struct Piece {
  const TpaSequence* sequence;
  int begin;
  int end;
  int length() const { return sequence->length - sequence->queries + end; }
};

// A launch of some pieces, a row each.
class Prefill {
 public:
  Prefill(const TpaGpuConfig& config, const std::vector<Piece>& pieces,
          ElementType out_type = ElementType::kFloat32,
          int64_t max_scratch = int64_t{1} << 32)
      : config_(config),
        tokens_(0),
        out_type_(out_type),
        width_(config.shape.num_heads * config.shape.value_dim) {
    const TpaShape& s = config.shape;
    std::vector<TpaCached> cached;
    std::vector<int32_t> starts = {0};
    std::vector<int32_t> lengths;
    std::vector<float> queries, cos, sin;
    const int64_t a = s.q_rank * s.num_heads;
    const int64_t b = (s.q_rank > 0 ? s.q_rank : s.num_heads) * s.head_dim;
    TpaPrefillLimits limits = {static_cast<int>(pieces.size()), 0, 0,
                               max_scratch};
    for (const Piece& piece : pieces) {
      const TpaSequence& seq = *piece.sequence;
      cached.push_back({&seq, piece.length()});
      lengths.push_back(piece.length());
      limits.max_context += piece.length();
      for (int t = piece.begin; t < piece.end; ++t) {
        const auto append = [t](std::vector<float>& to,
                                const std::vector<float>& from, int64_t n) {
          to.insert(to.end(), from.begin() + t * n, from.begin() + (t + 1) * n);
        };
        append(queries, seq.a_q, a);
        append(queries, seq.b_q, b);
        queries.insert(queries.end(), kQueryGap, kNaN);
        append(cos, seq.cos, s.head_dim / 2);
        append(sin, seq.sin, s.head_dim / 2);
        ++tokens_;
      }
      starts.push_back(tokens_);
    }
    limits.max_tokens = tokens_;
    plan_ = PlanTpaPrefill(s, limits);
    EXPECT_GT(plan_.query_tiles, 0);
    const TpaHostCache cache = MakeTpaHostCache(config, cached);
    pages_.emplace(cache.pages);
    table_.emplace(cache.table);
    lengths_.emplace(lengths);
    starts_.emplace(starts);
    queries_.emplace(queries);
    cos_.emplace(cos);
    sin_.emplace(sin);
    out_.emplace(out_type, std::vector<float>(tokens_ * Stride(), kCanary));
    schedule_.emplace(std::vector<uint8_t>(plan_.schedule_bytes, 0xff));
    // NaN, but for what padding has.
    scratch_.emplace(std::vector<uint8_t>(plan_.scratch_bytes, 0xff));
    params_.shape = s;
    params_.cache = {config.element, pages_->data(), cache.page_stride,
                     table_->data(), cache.table_stride};
    params_.a_q = queries_->data();
    params_.b_q = queries_->data() + a;
    params_.stride = a + b + kQueryGap;
    params_.position = config.position;
    params_.cos = cos_->data();
    params_.sin = sin_->data();
    params_.out_type = out_type;
    params_.out = out_->data();
    params_.out_stride = Stride();
    params_.schedule = schedule_->data();
    params_.scratch = scratch_->data();
  }

  cudaError_t Launch(cudaStream_t stream) {
    const cudaError_t error = LaunchTpaPrefillSchedule(
        {starts_->data(), lengths_->data(), params_.schedule}, plan_, stream);
    if (error != cudaSuccess) return error;
    return LaunchTpaPrefill(params_, plan_, stream);
  }
  // [tokens, H, E]
  std::vector<float> Run() {
    EXPECT_EQ(Launch(nullptr), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return Read();
  }
  std::vector<float> Read() {
    const std::vector<float> all = out_->Read();
    const std::vector<float> gap =
        Rounded(out_type_, std::vector<float>(Stride() - width_, kCanary));
    std::vector<float> compact;
    for (int64_t i = 0; i < tokens_; ++i) {
      const float* row = all.data() + i * Stride();
      compact.insert(compact.end(), row, row + width_);
      EXPECT_TRUE(SameBits({row + width_, gap.size()}, gap))
          << "gap after " << i;
    }
    return compact;
  }
  void Clear() { out_->Write(std::vector<float>(tokens_ * Stride(), kCanary)); }
  void SetRows(const std::vector<int32_t>& starts,
               const std::vector<int32_t>& lengths) {
    starts_->Write(starts);
    lengths_->Write(lengths);
  }
  TpaPrefillParams& params() { return params_; }
  TpaPrefillPlan& plan() { return plan_; }

 private:
  // A multiple of 8, as the kernel wants it.
  int64_t Stride() const { return (width_ + 7) / 8 * 8 + kOutGap; }

  const TpaGpuConfig config_;
  int64_t tokens_;
  const ElementType out_type_;
  const int64_t width_;
  TpaPrefillPlan plan_ = {};
  TpaPrefillParams params_ = {};
  std::optional<DeviceBuffer<uint16_t>> pages_;
  std::optional<DeviceBuffer<int32_t>> table_;
  std::optional<DeviceBuffer<int32_t>> lengths_;
  std::optional<DeviceBuffer<int32_t>> starts_;
  std::optional<DeviceBuffer<float>> queries_;
  std::optional<DeviceBuffer<float>> cos_;
  std::optional<DeviceBuffer<float>> sin_;
  std::optional<DeviceTensor> out_;
  std::optional<DeviceBuffer<uint8_t>> schedule_;
  std::optional<DeviceBuffer<uint8_t>> scratch_;
};

using Sequences = std::vector<std::unique_ptr<TpaSequence>>;

std::vector<Piece> Whole(const Sequences& sequences) {
  std::vector<Piece> pieces;
  for (const auto& s : sequences) pieces.push_back({s.get(), 0, s->queries});
  return pieces;
}

// Sequences of {tokens, new tokens}.
Sequences Make(const TpaGpuConfig& config,
               const std::vector<std::pair<int, int>>& lengths) {
  Sequences sequences;
  uint64_t seed = 1;
  for (const auto& [length, queries] : lengths) {
    sequences.push_back(
        std::make_unique<TpaSequence>(config, length, queries, seed));
    seed += 10;
  }
  return sequences;
}

class TpaPrefillGpuTest : public GpuTest {
 protected:
  // Some queries of a sequence, those at the ends of tiles among them.
  static std::vector<int> Probes(int queries, int most) {
    std::vector<int> probes;
    for (int t : {0, 1, 62, 63, 64, 127, 128, 191, 192, queries - 2}) {
      if (t >= 0 && t < queries) probes.push_back(t);
    }
    probes.push_back(queries - 1);
    const int step = std::max(1, queries / most);
    for (int t = step / 2; t < queries; t += step) probes.push_back(t);
    std::sort(probes.begin(), probes.end());
    probes.erase(std::unique(probes.begin(), probes.end()), probes.end());
    return probes;
  }

  // |got - want| / |want| of the worst head over the probes, and of the worst
  // query with all its heads. Few numbers may all be rounded badly, or cancel:
  // a single query, or few queries or features of a head, may be further off.
  static void Compare(const TpaGpuConfig& config, const Sequences& sequences,
                      const std::vector<float>& got, double tolerance,
                      int probes = 20) {
    const int64_t heads = config.shape.num_heads;
    const int64_t dim = config.shape.value_dim;
    int64_t token = 0;
    for (const auto& seq : sequences) {
      if (seq->queries == 0) continue;
      std::vector<double> error(heads, 0.0), norm(heads, 0.0);
      for (int t : Probes(seq->queries, probes)) {
        const std::vector<double> want = TpaGpuOracleOf(config, *seq, t);
        const float* row = got.data() + (token + t) * heads * dim;
        double query_error = 0.0;
        double query_norm = 0.0;
        for (int64_t h = 0; h < heads; ++h) {
          double e = 0.0;
          double n = 0.0;
          for (int64_t i = h * dim; i < (h + 1) * dim; ++i) {
            e += (row[i] - want[i]) * (row[i] - want[i]);
            n += want[i] * want[i];
          }
          error[h] += e;
          norm[h] += n;
          query_error += e;
          query_norm += n;
        }
        worst_query_ =
            std::max(worst_query_, std::sqrt(query_error / query_norm));
        ASSERT_LE(std::sqrt(query_error / query_norm),
                  (heads * dim < 512 ? 2 : 1) * tolerance)
            << "query " << t << " of " << seq->queries << ", length "
            << seq->length;
      }
      for (int64_t h = 0; h < heads; ++h) {
        const double relative = std::sqrt(error[h] / norm[h]);
        worst_head_ = std::max(worst_head_, relative);
        ASSERT_LE(relative, (seq->queries < 16 || dim < 32 ? 2 : 1) * tolerance)
            << "head " << h << ", length " << seq->length;
      }
      token += seq->queries;
    }
  }
  static void Check(const TpaGpuConfig& config, const Sequences& sequences,
                    double tolerance = kTolerance, int probes = 20) {
    SCOPED_TRACE(Describe(config));
    Prefill prefill(config, Whole(sequences));
    worst_query_ = worst_head_ = 0.0;
    Compare(config, sequences, prefill.Run(), tolerance, probes);
    std::printf("%s: worst query %.2e, head %.2e\n", Describe(config).c_str(),
                worst_query_, worst_head_);
  }

  static double worst_query_;
  static double worst_head_;
};
double TpaPrefillGpuTest::worst_query_ = 0.0;
double TpaPrefillGpuTest::worst_head_ = 0.0;

class TpaPrefillShapeGpuTest
    : public TpaPrefillGpuTest,
      public testing::WithParamInterface<std::tuple<TpaElement, TpaShape>> {};

// Whole prompts, prompts that go on from what is cached, and nothing new.
TEST_P(TpaPrefillShapeGpuTest, MatchesFloat64) {
  const TpaGpuConfig config = {std::get<1>(GetParam()),
                               std::get<0>(GetParam())};
  Check(config, Make(config, {{1, 1},
                              {63, 63},
                              {64, 64},
                              {300, 0},
                              {65, 65},
                              {127, 127},
                              {640, 640},
                              {333, 1},
                              {257, 128},
                              {500, 131}}));
}

INSTANTIATE_TEST_SUITE_P(Shapes, TpaPrefillShapeGpuTest,
                         testing::Combine(testing::Values(TpaElement::kBFloat16,
                                                          TpaElement::kFloat16),
                                          testing::ValuesIn(kShapes)));

TEST_F(TpaPrefillGpuTest, WithoutPosition) {
  const TpaGpuConfig config = {kShapes[1], TpaElement::kBFloat16,
                               LrpeType::kNone};
  Check(config, Make(config, {{200, 200}, {70, 3}}));
}

TEST_F(TpaPrefillGpuTest, LongLengths) {
  for (const TpaShape& shape :
       {TpaShape{4, 128, 128, 4, 1}, TpaShape{3, 128, 128, 4, 2},
        TpaShape{5, 64, 64, 4, 1}, TpaShape{2, 64, 64, 4, 2},
        TpaShape{2, 256, 256, 2, 3}}) {
    const TpaGpuConfig config = {shape};
    Check(config, Make(config, {{4097, 4097}, {9000, 700}, {5, 5}, {2048, 1}}),
          kTolerance, 30);
  }
}

// Maxima that grow or fall all the time.
TEST_F(TpaPrefillGpuTest, RampedScores) {
  for (TpaElement element : {TpaElement::kBFloat16, TpaElement::kFloat16}) {
    for (const TpaShape& shape :
         {TpaShape{3, 128, 128, 2, 1}, TpaShape{2, 64, 64, 2, 1},
          TpaShape{2, 128, 128, 2, 2}}) {
      for (const auto& [from, to] :
           {std::pair(0.0f, 60.0f), std::pair(60.0f, 0.0f),
            std::pair(0.0f, 6.0f)}) {
        const TpaGpuConfig config = {shape, element};
        Sequences sequences = Make(config, {{900, 900}, {65, 65}, {700, 20}});
        for (auto& s : sequences) s->Ramp(config, from, to);
        SCOPED_TRACE(testing::Message() << from << " to " << to);
        // K_h is rounded: to 1e-2 of what a weight is at a score of 60.
        Check(config, sequences, std::max(from, to) > 10 ? 2e-2 : kTolerance);
      }
    }
  }
}

// Scores up to 1e4 and more, of which the rounding of queries leaves no weight
// right: but outputs are means of values.
TEST_F(TpaPrefillGpuTest, ExtremeScoresAreFinite) {
  for (const TpaShape& shape :
       {TpaShape{3, 128, 128, 2, 1}, TpaShape{2, 64, 64, 2, 2}}) {
    for (TpaElement element : {TpaElement::kBFloat16, TpaElement::kFloat16}) {
      const TpaGpuConfig config = {shape, element};
      for (int kind = 0; kind < 3; ++kind) {
        Sequences sequences = Make(config, {{900, 900}, {65, 65}, {700, 20}});
        for (auto& s : sequences) {
          if (kind == 0) s->Ramp(config, -1e4f, 1e4f);
          if (kind == 1) s->Ramp(config, 1e4f, -1e4f);
          if (kind == 2) s->ScaleKeys(config, 3000.0f);
        }
        Prefill prefill(config, Whole(sequences));
        for (float x : prefill.Run()) {
          ASSERT_LE(std::abs(x), 1.01f) << Describe(config) << " kind " << kind;
        }
      }
    }
  }
}

const TpaShape kBitShapes[] = {{4, 128, 128, 4, 1}, {3, 128, 128, 4, 2},
                               {5, 64, 64, 4, 1},   {2, 64, 64, 4, 2},
                               {2, 256, 200, 2, 3}, {3, 96, 40, 0, 1}};

// A prompt cut anywhere. Ramped, maxima move, of every third query only, and of
// every third early; who is in a warp with whom depends on the cut.
class TpaPrefillChunksGpuTest
    : public TpaPrefillGpuTest,
      public testing::WithParamInterface<std::pair<TpaElement, bool>> {};

TEST_P(TpaPrefillChunksGpuTest, BitsDoNotDependOnChunks) {
  const auto& [element, ramped] = GetParam();
  for (const TpaShape& shape : kBitShapes) {
    const TpaGpuConfig config = {shape, element};
    TpaSequence seq(config, 1500, 1500, 7);
    if (ramped) {
      seq.Ramp(config, 0.0f, 60.0f);
      const size_t row = seq.b_q.size() / seq.queries;
      constexpr float kScales[] = {1.0f, 0.3f, 0.01f};
      for (size_t i = 0; i < seq.b_q.size(); ++i)
        seq.b_q[i] *= kScales[i / row % 3];
    }
    const int64_t width = shape.num_heads * shape.value_dim;
    SCOPED_TRACE(Describe(config));
    const std::vector<float> whole =
        Prefill(config, {{&seq, 0, seq.queries}}).Run();
    for (const std::vector<int>& cuts :
         {std::vector<int>{0, 1, 64, 65, 200, 771, 1500},
          std::vector<int>{0, 640, 1500}, std::vector<int>{0, 1499, 1500},
          std::vector<int>{0, 127, 255, 1021, 1500}}) {
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        const std::vector<float> part =
            Prefill(config, {{&seq, cuts[i], cuts[i + 1]}}).Run();
        ASSERT_TRUE(SameBits(
            part, {whole.data() + cuts[i] * width,
                   static_cast<size_t>((cuts[i + 1] - cuts[i]) * width)}))
            << "from " << cuts[i] << " to " << cuts[i + 1];
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Scores, TpaPrefillChunksGpuTest,
    testing::Values(std::pair(TpaElement::kBFloat16, false),
                    std::pair(TpaElement::kBFloat16, true),
                    std::pair(TpaElement::kFloat16, true)));

TEST_F(TpaPrefillGpuTest, BitsDoNotDependOnTheBatch) {
  for (const TpaShape& shape : kBitShapes) {
    const TpaGpuConfig config = {shape};
    const int64_t width = shape.num_heads * shape.value_dim;
    Sequences sequences = Make(config, {{1000, 1000},
                                        {40, 0},
                                        {63, 63},
                                        {2100, 129},
                                        {64, 64},
                                        {65, 1},
                                        {1, 1},
                                        {300, 300},
                                        {191, 190}});
    // Maxima move at other places in each row.
    for (size_t i = 0; i < sequences.size(); i += 2) {
      sequences[i]->Ramp(config, 0.0f, 40.0f);
    }
    SCOPED_TRACE(Describe(config));
    const std::vector<float> all = Prefill(config, Whole(sequences)).Run();
    int64_t token = 0;
    for (const auto& seq : sequences) {
      if (seq->queries == 0) continue;
      const std::vector<float> alone =
          Prefill(config, {{seq.get(), 0, seq->queries}}).Run();
      ASSERT_TRUE(SameBits(alone, {all.data() + token * width,
                                   static_cast<size_t>(seq->queries * width)}))
          << seq->queries << " of " << seq->length;
      token += seq->queries;
    }
    // And with scratch memory for one or some heads only.
    for (int heads = 1; heads < shape.num_heads; ++heads) {
      Prefill prefill(config, Whole(sequences));
      const TpaPrefillPlan& plan = prefill.plan();
      Prefill small(config, Whole(sequences), ElementType::kFloat32,
                    heads * (plan.query_bytes + plan.context_bytes));
      EXPECT_LT(small.plan().head_group, shape.num_heads);
      ASSERT_TRUE(SameBits(small.Run(), all)) << heads << " heads";
    }
  }
}

TEST_F(TpaPrefillGpuTest, BFloat16OutputsAreRounded) {
  for (const TpaShape& shape :
       {kShapes[0], kShapes[5], TpaShape{5, 64, 40, 6, 2}}) {
    const TpaGpuConfig config = {shape};
    const Sequences sequences = Make(config, {{200, 200}, {70, 3}});
    const std::vector<float> want = Prefill(config, Whole(sequences)).Run();
    EXPECT_TRUE(SameBits(
        Prefill(config, Whole(sequences), ElementType::kBFloat16).Run(),
        Rounded(ElementType::kBFloat16, want)))
        << Describe(config);
  }
}

// A captured graph replays with other rows.
TEST_F(TpaPrefillGpuTest, GraphFollowsTheRows) {
  const TpaGpuConfig config = {{4, 128, 128, 4, 2}};
  const int64_t width = 4 * 128;
  const Sequences sequences = Make(config, {{400, 400}, {300, 200}});
  Prefill prefill(config, Whole(sequences));
  const std::vector<float> want = prefill.Run();
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal),
            cudaSuccess);
  ASSERT_EQ(prefill.Launch(stream), cudaSuccess);
  cudaGraph_t graph;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphExec_t exec;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  // The first row's first 150 tokens, and nothing of the second.
  prefill.Clear();
  prefill.SetRows({0, 150, 150}, {150, 100});
  ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  std::vector<float> got = prefill.Read();
  EXPECT_TRUE(SameBits({got.data(), static_cast<size_t>(150 * width)},
                       {want.data(), static_cast<size_t>(150 * width)}));
  EXPECT_EQ(got[150 * width], kCanary);
  prefill.SetRows({0, 400, 600}, {400, 300});
  for (int i = 0; i < 2; ++i) {
    prefill.Clear();
    ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_TRUE(SameBits(prefill.Read(), want));
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// More rows or tokens than the plan has room for: the last rows are left out.
TEST_F(TpaPrefillGpuTest, RowsBeyondThePlanAreLeftOut) {
  const TpaGpuConfig config = {{2, 64, 64, 2, 2}};
  const Sequences sequences = Make(config, {{100, 100}, {600, 600}, {50, 50}});
  Prefill prefill(config, Whole(sequences));
  const std::vector<float> want = prefill.Run();
  prefill.Clear();
  prefill.plan() =
      PlanTpaPrefill(config.shape, {3, 200, 200, int64_t{1} << 30});
  const std::vector<float> got = prefill.Run();
  EXPECT_TRUE(SameBits({got.data(), 100 * 128}, {want.data(), 100 * 128}));
  EXPECT_EQ(got[100 * 128], kCanary);
}

TEST_F(TpaPrefillGpuTest, RefusesWhatItDoesNotSupport) {
  const TpaGpuConfig config = {{4, 128, 128, 4, 1}};
  const Sequences sequences = Make(config, {{10, 10}});
  Prefill prefill(config, Whole(sequences));
  const TpaPrefillParams good = prefill.params();
  EXPECT_EQ(LaunchTpaPrefillSchedule({nullptr, nullptr, good.schedule},
                                     prefill.plan(), nullptr),
            cudaErrorInvalidValue);
  const auto refused = [&](auto change) {
    TpaPrefillParams p = good;
    TpaPrefillPlan plan = prefill.plan();
    change(p, plan);
    return LaunchTpaPrefill(p, plan, nullptr) == cudaErrorInvalidValue;
  };
  using P = TpaPrefillParams;
  using L = TpaPrefillPlan;
  EXPECT_TRUE(refused([](P& p, L&) { p.shape.head_dim = 62; }));
  EXPECT_TRUE(refused([](P& p, L&) { p.shape.kv_rank = 2; }));
  EXPECT_TRUE(refused([](P& p, L&) {
    p.shape.head_dim = 64;
    p.shape.value_dim = 64;
  }));
  EXPECT_TRUE(refused([](P& p, L&) { p.position = LrpeType::kCosine; }));
  EXPECT_TRUE(refused([](P& p, L&) { p.sin = nullptr; }));
  EXPECT_TRUE(refused([](P& p, L&) { p.a_q = nullptr; }));
  EXPECT_TRUE(refused([](P& p, L&) { p.out_stride = 8; }));
  EXPECT_TRUE(refused([](P& p, L&) { p.out_stride += 4; }));
  EXPECT_TRUE(refused([](P& p, L&) { p.cache.page_stride = 64; }));
  EXPECT_TRUE(refused([](P& p, L&) { p.scratch = nullptr; }));
  EXPECT_TRUE(refused([](P&, L& plan) { plan.query_tiles = 0; }));
  EXPECT_TRUE(refused([](P&, L& plan) { plan.head_group = 5; }));
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace recurve
