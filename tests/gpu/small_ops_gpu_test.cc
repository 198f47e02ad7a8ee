// The small operations of the backend on the GPU against those of the CPU:
// embedding, rows, position tables, LayerNorm, expanded factors and the linear
// scan.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "kernels/embedding/embedding_cuda.h"
#include "kernels/linear_attn/scan/linear_scan_cuda.h"
#include "kernels/linear_attn/scan/linear_scan_plan.h"
#include "kernels/lrpe/lrpe.h"
#include "kernels/lrpe/lrpe_table_cuda.h"
#include "kernels/norm/norm.h"
#include "kernels/norm/norm_cuda.h"
#include "kernels/rows/rows_cuda.h"
#include "kernels/tpa/append/expand_factors_cuda.h"
#include "tests/gpu/device_buffer.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class SmallOpsGpuTest : public GpuTest {
 protected:
  std::vector<float> Random(int64_t n, float scale = 1.0f) {
    std::vector<float> x;
    for (int64_t i = 0; i < n; ++i) {
      x.push_back(scale * 1e-6f *
                  static_cast<float>(random_.Uniform(-1000000, 1000000)));
    }
    return x;
  }
  // That a scan of so much takes blocks of more columns here.
  static void ExpectWide(int64_t key_dim, int64_t value_dim, int64_t heads,
                         int64_t sequences) {
    int multiprocessors = 0;
    ASSERT_EQ(cudaDeviceGetAttribute(&multiprocessors,
                                     cudaDevAttrMultiProcessorCount, 0),
              cudaSuccess);
    EXPECT_GT(
        PlanLinearScan(key_dim, value_dim, heads, sequences, multiprocessors)
            .columns,
        1);
    EXPECT_EQ(
        PlanLinearScan(key_dim, value_dim, heads, 1, multiprocessors).columns,
        1);
  }
  static void Done() { ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess); }
  static double Worst(const std::vector<float>& a,
                      const std::vector<float>& b) {
    EXPECT_EQ(a.size(), b.size());
    double worst = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const double error = std::abs(static_cast<double>(a[i]) - b[i]);
      worst = std::max(worst, std::isnan(error) ? 1e30 : error);
    }
    return worst;
  }

  TestRandom random_{7};
  ThreadPool pool_{2};
};

TEST_F(SmallOpsGpuTest, Embed) {
  const int64_t vocab = 11, cols = 37, stride = 41;
  const std::vector<float> table = Random(vocab * cols);
  const std::vector<int32_t> tokens = {3, 10, 0, 3, -1, 11};
  DeviceBuffer<int32_t> ids(tokens);
  // The same tokens, some of them fed: every third number of `fed`.
  DeviceBuffer<int32_t> others({7, 10, 7, 7, -1, 7});
  DeviceBuffer<int32_t> sources({1, -1, 0, 1, -1, 2});
  DeviceBuffer<int32_t> fed({0, 7, 7, 3, 7, 7, 11});
  for (const WeightType type :
       {WeightType::kFloat32, WeightType::kBFloat16, WeightType::kFloat16}) {
    std::vector<uint16_t> halves;
    for (float x : table) {
      halves.push_back(type == WeightType::kBFloat16 ? FloatToBFloat16(x)
                                                     : FloatToFloat16(x));
    }
    DeviceBuffer<float> floats_on_device(table);
    DeviceBuffer<uint16_t> halves_on_device(halves);
    DeviceBuffer<float> out(std::vector<float>(tokens.size() * stride, -7));
    const void* data = type == WeightType::kFloat32
                           ? static_cast<const void*>(floats_on_device.data())
                           : halves_on_device.data();
    const auto embed = [&](const int32_t* of, const int32_t* from, float* to) {
      return LaunchEmbed(
          {type, data, vocab, of, from, from == nullptr ? nullptr : fed.data(),
           3, to, stride, static_cast<int64_t>(tokens.size()), cols, 3.0f},
          nullptr);
    };
    ASSERT_EQ(embed(ids.data(), nullptr, out.data()), cudaSuccess);
    DeviceBuffer<float> of_fed(std::vector<float>(tokens.size() * stride, -7));
    ASSERT_EQ(embed(others.data(), sources.data(), of_fed.data()), cudaSuccess);
    Done();
    const std::vector<float> got = out.Read();
    ASSERT_EQ(of_fed.Read(), got);
    for (size_t r = 0; r < tokens.size(); ++r) {
      for (int64_t c = 0; c < stride; ++c) {
        float want = -7;
        if (c < cols) {
          want = 0;
          if (tokens[r] >= 0 && tokens[r] < vocab) {
            const int64_t i = tokens[r] * cols + c;
            want = 3.0f * (type == WeightType::kFloat32 ? table[i]
                           : type == WeightType::kBFloat16
                               ? BFloat16ToFloat(halves[i])
                               : Float16ToFloat(halves[i]));
          }
        }
        ASSERT_EQ(got[r * stride + c], want) << r << " " << c;
      }
    }
  }
}

TEST_F(SmallOpsGpuTest, Copy) {
  const std::vector<float> from = Random(600'000);
  DeviceBuffer<float> in(from);
  for (const int64_t count : {0, 4, 1024, 1028, 5000, 599'996}) {
    DeviceBuffer<float> out(std::vector<float>(from.size(), -7));
    ASSERT_EQ(LaunchCopy({in.data(), out.data(), 4 * count}, nullptr),
              cudaSuccess);
    Done();
    std::vector<float> want(from.size(), -7);
    std::copy_n(from.begin(), count, want.begin());
    ASSERT_EQ(out.Read(), want) << count;
  }
  EXPECT_EQ(LaunchCopy({in.data(), in.data(), 8}, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(LaunchCopy({in.data(), in.data(), -16}, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(LaunchCopy({Misaligned(in.data()), in.data(), 16}, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(LaunchCopy({in.data(), Misaligned(in.data()), 16}, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(LaunchCopy({in.data(), nullptr, 16}, nullptr),
            cudaErrorInvalidValue);
}

TEST_F(SmallOpsGpuTest, GatherScatterAndFill) {
  const int64_t cols = 70, x_stride = 75, y_stride = 96;
  const std::vector<float> x = Random(5 * x_stride);
  const std::vector<int32_t> index = {4, -1, 0, 2};
  DeviceBuffer<float> in(x);
  DeviceBuffer<int32_t> rows(index);
  DeviceBuffer<float> gathered(std::vector<float>(4 * y_stride, kNaN));
  ASSERT_EQ(
      LaunchGatherRows({in.data(), x_stride, rows.data(), WeightType::kFloat32,
                        gathered.data(), y_stride, 4, cols, 90},
                       nullptr),
      cudaSuccess);
  DeviceBuffer<uint16_t> halves(std::vector<uint16_t>(5 * y_stride, 0xffff));
  ASSERT_EQ(
      LaunchGatherRows({in.data(), x_stride, nullptr, WeightType::kBFloat16,
                        halves.data(), y_stride, 5, cols, 96},
                       nullptr),
      cudaSuccess);
  DeviceBuffer<float> scattered(std::vector<float>(5 * y_stride, -1));
  ASSERT_EQ(LaunchScatterRows(
                {gathered.data(), y_stride, rows.data(), WeightType::kFloat32,
                 scattered.data(), y_stride, 4, cols},
                nullptr),
            cudaSuccess);
  DeviceBuffer<uint16_t> scattered_halves(
      std::vector<uint16_t>(5 * y_stride, 0xffff));
  ASSERT_EQ(LaunchScatterRows(
                {gathered.data(), y_stride, rows.data(), WeightType::kBFloat16,
                 scattered_halves.data(), y_stride, 4, cols},
                nullptr),
            cudaSuccess);
  DeviceBuffer<float> filled(std::vector<float>(3 * y_stride, -1));
  ASSERT_EQ(
      LaunchFillRows({in.data(), filled.data(), y_stride, 3, cols}, nullptr),
      cudaSuccess);
  DeviceBuffer<float> sums(std::vector<float>(3 * y_stride, 5));
  ASSERT_EQ(LaunchAddRows({in.data(), x_stride, sums.data(), y_stride, 3, cols},
                          nullptr),
            cudaSuccess);
  Done();
  const auto got_sums = sums.Read();
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t c = 0; c < y_stride; ++c) {
      ASSERT_EQ(got_sums[r * y_stride + c],
                c < cols ? x[r * x_stride + c] + 5 : 5);
    }
  }
  const auto got = gathered.Read();
  const auto got_halves = halves.Read();
  const auto got_scattered = scattered.Read();
  const auto got_scattered_halves = scattered_halves.Read();
  const auto got_filled = filled.Read();
  for (int64_t c = 0; c < y_stride; ++c) {
    for (int64_t r = 0; r < 4; ++r) {
      const float value = got[r * y_stride + c];
      if (c >= 90) {
        ASSERT_TRUE(std::isnan(value));
      } else {
        ASSERT_EQ(value,
                  index[r] >= 0 && c < cols ? x[index[r] * x_stride + c] : 0);
      }
    }
    for (int64_t r = 0; r < 5; ++r) {
      ASSERT_EQ(got_halves[r * y_stride + c],
                c < cols ? FloatToBFloat16(x[r * x_stride + c]) : 0);
      const bool named = r == 4 || r == 0 || r == 2;
      ASSERT_EQ(got_scattered[r * y_stride + c],
                named && c < cols ? x[r * x_stride + c] : -1);
      ASSERT_EQ(
          got_scattered_halves[r * y_stride + c],
          named && c < cols ? FloatToBFloat16(x[r * x_stride + c]) : 0xffff);
    }
    for (int64_t r = 0; r < 3; ++r)
      ASSERT_EQ(got_filled[r * y_stride + c], c < cols ? x[c] : -1);
  }
}

TEST_F(SmallOpsGpuTest, PositionTables) {
  const std::vector<int64_t> positions = {0, 1, 63, 4097, 1000003};
  const auto rows = static_cast<int64_t>(positions.size());
  const std::vector<double> theta = LrpeTheta(LrpeType::kRotate, 26, 10000.0);
  const auto angles = static_cast<int64_t>(theta.size());
  const std::vector<uint64_t> steps = LrpePhaseSteps(theta);
  const std::vector<float> theta32(theta.begin(), theta.end());
  DeviceBuffer<int64_t> positions_on_device(positions);
  DeviceBuffer<uint64_t> steps_on_device(steps);
  DeviceBuffer<float> theta_on_device(theta32);
  DeviceBuffer<float> cos(std::vector<float>(rows * angles, kNaN));
  DeviceBuffer<float> sin(std::vector<float>(rows * angles, kNaN));
  std::vector<float> want_cos(rows * angles), want_sin(rows * angles);
  CudaLrpeTableParams params = {steps_on_device.data(),
                                nullptr,
                                positions_on_device.data(),
                                cos.data(),
                                sin.data(),
                                rows,
                                angles,
                                0,
                                false};
  ASSERT_EQ(LaunchLrpeTable(params, nullptr), cudaSuccess);
  Done();
  LrpeTable({steps.data(), positions.data(), want_cos.data(), want_sin.data(),
             rows, angles},
            pool_);
  EXPECT_LE(Worst(cos.Read(), want_cos), 1e-7);
  EXPECT_LE(Worst(sin.Read(), want_sin), 1e-7);

  for (const bool bfloat16 : {false, true}) {
    params.phase_steps = nullptr;
    params.theta = theta_on_device.data();
    params.log_decay = -1e-3f;
    params.round_to_bfloat16 = bfloat16;
    ASSERT_EQ(LaunchLrpeTable(params, nullptr), cudaSuccess);
    Done();
    LrpeFloat32Table({theta32.data(), positions.data(), want_cos.data(),
                      want_sin.data(), rows, angles, -1e-3f, bfloat16},
                     pool_);
    EXPECT_LE(Worst(cos.Read(), want_cos), 1e-7);
    EXPECT_LE(Worst(sin.Read(), want_sin), 1e-7);
  }
}

TEST_F(SmallOpsGpuTest, LayerNorm) {
  for (const int64_t cols : {1, 24, 255, 1600}) {
    const int64_t rows = 5, stride = cols + 3;
    std::vector<float> x = Random(rows * stride, 3.0f);
    for (float& value : x) value += 10.0f;
    const std::vector<float> weight = Random(cols), bias = Random(cols);
    DeviceBuffer<float> in(x), w(weight), b(bias);
    for (const bool plain : {false, true}) {
      std::vector<float> want(x);
      LayerNorm({x.data(), stride, plain ? nullptr : weight.data(),
                 plain ? nullptr : bias.data(), want.data(), stride, rows, cols,
                 1e-5f},
                pool_);
      DeviceBuffer<float> out(x);
      ASSERT_EQ(LaunchLayerNorm({in.data(), stride, plain ? nullptr : w.data(),
                                 plain ? nullptr : b.data(), out.data(), stride,
                                 rows, cols, 1e-5f},
                                nullptr),
                cudaSuccess);
      Done();
      EXPECT_LE(Worst(out.Read(), want), 2e-5) << cols;
    }
  }
}

TEST_F(SmallOpsGpuTest, ExpandFactors) {
  const int64_t rows = 3, rank = 4, heads = 5, dim = 12;
  const int64_t stride = rank * (heads + dim) + 2, out_stride = heads * dim + 1;
  const std::vector<float> factors = Random(rows * stride);
  std::vector<float> want(rows * out_stride, -1);
  ExpandFactorsParams params = {factors.data(),
                                factors.data() + rank * heads,
                                stride,
                                want.data(),
                                out_stride,
                                rows,
                                rank,
                                heads,
                                dim};
  ExpandFactors(params, pool_);
  DeviceBuffer<float> in(factors);
  DeviceBuffer<float> out(std::vector<float>(rows * out_stride, -1));
  params.a = in.data();
  params.b = in.data() + rank * heads;
  params.out = out.data();
  ASSERT_EQ(LaunchExpandFactors(params, nullptr), cudaSuccess);
  Done();
  EXPECT_LE(Worst(out.Read(), want), 1e-6);
}

struct ScanCase {
  int64_t heads, dim, value_dim;
  LrpeType position;
  Activation q, k, v;
  bool wide = false;  // blocks with more columns
};

TEST_F(SmallOpsGpuTest, LinearScan) {
  const ScanCase cases[] = {
      {3, 1, 24, LrpeType::kNone, Activation::kNone, Activation::kNone,
       Activation::kNone},
      {2, 12, 20, LrpeType::kRotate, Activation::kSilu, Activation::kSoftmax,
       Activation::kNone},
      {2, 64, 64, LrpeType::kCosine, Activation::kSilu, Activation::kSilu,
       Activation::kSoftmax},
      {1, 128, 130, LrpeType::kCosine, Activation::kTwoPlusElu,
       Activation::kRelu, Activation::kSilu},
      {2, 250, 33, LrpeType::kCosine, Activation::kSigmoid, Activation::kExp,
       Activation::kNone},
      // Enough heads that blocks have more columns, of 8, 16 and 32 rows.
      {30, 40, 132, LrpeType::kRotate, Activation::kSilu, Activation::kSoftmax,
       Activation::kSoftmax, true},
      {60, 64, 64, LrpeType::kCosine, Activation::kRelu, Activation::kSilu,
       Activation::kNone, true},
      {60, 128, 40, LrpeType::kCosine, Activation::kNone, Activation::kSigmoid,
       Activation::kSilu, true},
  };
  // Rows of each sequence; the third is in the sink.
  const std::vector<int32_t> starts = {0, 1, 70, 72, 72, 90};
  const std::vector<int32_t> slots = {3, 1, 0, 2, 5};
  const int64_t tokens = starts.back();
  const auto sequences = static_cast<int64_t>(slots.size());
  for (const ScanCase& c : cases) {
    SCOPED_TRACE(c.dim);
    const int64_t key_dim = LrpeOutputDim(c.position, c.dim);
    const int64_t angles = LrpeAngles(c.position, c.dim);
    const int64_t qk = c.heads * c.dim, vd = c.heads * c.value_dim;
    const int64_t stride = qk + 1, out_stride = vd + 3;
    const int64_t v_stride = vd + (c.wide ? 4 : 2);
    const int64_t slot_stride =
        c.heads * key_dim * c.value_dim + (c.wide ? 4 : 5);
    if (c.wide) ExpectWide(key_dim, c.value_dim, c.heads, sequences);
    const std::vector<float> q = Random(tokens * stride),
                             k = Random(tokens * stride),
                             v = Random(tokens * v_stride);
    const std::vector<float> states = Random(6 * slot_stride);
    std::vector<float> decay;
    for (int64_t h = 0; h < c.heads; ++h)
      decay.push_back(1.0f - 0.05f * static_cast<float>(h));
    std::vector<float> cos(tokens * angles + 1), sin(tokens * angles + 1);
    for (size_t i = 0; i < cos.size(); ++i) {
      cos[i] = std::cos(static_cast<float>(i));
      sin[i] = std::sin(static_cast<float>(i));
    }
    std::vector<float> want(tokens * out_stride, -1), want_states = states;
    LinearAttentionParams p = {
        c.heads,     c.dim,        c.value_dim,   q.data(),
        k.data(),    v.data(),     stride,        v_stride,
        want.data(), out_stride,   starts.data(), sequences,
        c.q,         c.k,          c.v,           c.position,
        cos.data(),  sin.data(),   decay.data(),  want_states.data(),
        slot_stride, slots.data(), nullptr};
    LinearAttention(p, pool_);
    // The sink gives zeros and keeps its state.
    std::copy_n(states.begin(), slot_stride, want_states.begin());
    for (int64_t row = 70; row < 72; ++row)
      std::fill_n(want.begin() + row * out_stride, vd, 0.0f);

    DeviceBuffer<float> dq(q), dk(k), dv(v), dcos(cos), dsin(sin), dd(decay);
    DeviceBuffer<float> out(std::vector<float>(tokens * out_stride, -1));
    DeviceBuffer<float> dstates(states);
    DeviceBuffer<int32_t> dstarts(starts), dslots(slots);
    LinearAttentionParams g = p;
    g.q = dq.data(), g.k = dk.data(), g.v = dv.data();
    g.out = out.data();
    g.query_start = dstarts.data();
    g.cos = dcos.data(), g.sin = dsin.data();
    g.decay = dd.data();
    g.states = dstates.data();
    g.slots = dslots.data();
    ASSERT_EQ(LaunchLinearScan(g, true, nullptr), cudaSuccess);
    Done();
    double largest = 0;
    for (float x : want) largest = std::max<double>(largest, std::abs(x));
    const std::vector<float> got = out.Read();
    EXPECT_LE(Worst(got, want), 1e-5 * largest);
    const std::vector<float> got_states = dstates.Read();
    EXPECT_LE(Worst(got_states, want_states), 1e-5 * largest);

    // Whole prompts, of no, some and all tokens of a sequence.
    std::vector<int32_t> whole;
    for (int64_t i = 0; i < sequences; ++i) {
      whole.push_back((starts[i + 1] - starts[i]) * static_cast<int>(i % 3) /
                      2);
    }
    LinearAttentionParams w = p;
    std::vector<float> whole_out(tokens * out_stride, -1),
        whole_states = states;
    w.out = whole_out.data();
    w.states = whole_states.data();
    w.whole = whole.data();
    LinearAttention(w, pool_);
    std::copy_n(states.begin(), slot_stride, whole_states.begin());
    for (int64_t row = 70; row < 72; ++row)
      std::fill_n(whole_out.begin() + row * out_stride, vd, 0.0f);
    DeviceBuffer<float> gwhole_out(std::vector<float>(tokens * out_stride, -1));
    DeviceBuffer<float> gwhole_states(states);
    DeviceBuffer<int32_t> dwhole(whole);
    LinearAttentionParams gw = g;
    gw.out = gwhole_out.data();
    gw.states = gwhole_states.data();
    gw.whole = dwhole.data();
    ASSERT_EQ(LaunchLinearScan(gw, false, nullptr), cudaSuccess);
    Done();
    EXPECT_LE(Worst(gwhole_out.Read(), whole_out), 1e-5 * largest);
    EXPECT_LE(Worst(gwhole_states.Read(), whole_states), 1e-5 * largest);

    // The second sequence again, cut in two launches: the same bits.
    DeviceBuffer<float> again(states), out2(got);
    for (const auto& [from, to] : {std::pair(1, 20), std::pair(20, 70)}) {
      DeviceBuffer<int32_t> cut({from, to}), slot({1});
      g.query_start = cut.data();
      g.slots = slot.data();
      g.sequences = 1;
      g.states = again.data();
      g.out = out2.data();
      ASSERT_EQ(LaunchLinearScan(g, true, nullptr), cudaSuccess);
      Done();
    }
    EXPECT_EQ(out2.Read(), got);
    const std::vector<float> twice = again.Read();
    EXPECT_TRUE(std::equal(twice.begin() + slot_stride,
                           twice.begin() + 2 * slot_stride,
                           got_states.begin() + slot_stride));
  }
}

// Many sequences at once take blocks of more columns.
TEST_F(SmallOpsGpuTest, AScanAloneHasTheSameBits) {
  constexpr int64_t kSequences = 80, kHeads = 4, kSink = 7;
  for (const auto& [position, dim, value_dim] :
       {std::tuple(LrpeType::kRotate, 40, 72),
        std::tuple(LrpeType::kNone, 128, 128),
        std::tuple(LrpeType::kCosine, 128, 40)}) {
    SCOPED_TRACE(testing::Message() << dim << " x " << value_dim);
    const int64_t key_dim = LrpeOutputDim(position, dim);
    const int64_t angles = LrpeAngles(position, dim);
    ExpectWide(key_dim, value_dim, kHeads, kSequences);
    const int64_t stride = kHeads * dim + 4, v_stride = kHeads * value_dim + 4;
    const int64_t slot_stride = kHeads * key_dim * value_dim + 4;
    std::vector<int32_t> starts = {0}, slots;
    for (int64_t i = 0; i < kSequences; ++i) {
      starts.push_back(starts.back() + static_cast<int32_t>(i % 4));
      slots.push_back(i == kSink ? 0 : static_cast<int32_t>(kSequences - i));
    }
    const int64_t tokens = starts.back();
    const std::vector<float> states = Random((kSequences + 1) * slot_stride);
    DeviceBuffer<float> q(Random(tokens * stride)), k(Random(tokens * stride)),
        v(Random(tokens * v_stride)), cos(Random(tokens * angles + 1)),
        sin(Random(tokens * angles + 1)), decay(Random(kHeads)),
        all_states(states),
        all_out(std::vector<float>(tokens * v_stride, kNaN)),
        alone_states(states),
        alone_out(std::vector<float>(tokens * v_stride, kNaN));
    DeviceBuffer<int32_t> all_starts(starts), all_slots(slots);
    LinearAttentionParams p = {};
    p.num_heads = kHeads;
    p.head_dim = dim;
    p.value_dim = value_dim;
    p.q = q.data();
    p.k = k.data();
    p.v = v.data();
    p.stride = stride;
    p.v_stride = v_stride;
    p.out = all_out.data();
    p.out_stride = v_stride;
    p.query_start = all_starts.data();
    p.sequences = kSequences;
    p.q_activation = Activation::kSilu;
    p.k_activation = Activation::kSoftmax;
    p.v_activation = Activation::kSilu;
    p.position = position;
    p.cos = cos.data();
    p.sin = sin.data();
    p.decay = decay.data();
    p.states = all_states.data();
    p.slot_stride = slot_stride;
    p.slots = all_slots.data();
    ASSERT_EQ(LaunchLinearScan(p, false, nullptr), cudaSuccess);
    Done();
    p.out = alone_out.data();
    p.states = alone_states.data();
    p.sequences = 1;
    for (int64_t i = 0; i < kSequences; ++i) {
      p.query_start = all_starts.data() + i;
      p.slots = all_slots.data() + i;
      ASSERT_EQ(LaunchLinearScan(p, false, nullptr), cudaSuccess);
    }
    Done();
    EXPECT_TRUE(SameBits(all_out.Read(), alone_out.Read()));
    EXPECT_TRUE(SameBits(all_states.Read(), alone_states.Read()));
    const auto refused = [&p](auto&& change) {
      LinearAttentionParams params = p;
      change(params);
      return LaunchLinearScan(params, false, nullptr) == cudaErrorInvalidValue;
    };
    using Params = LinearAttentionParams;
    EXPECT_TRUE(refused([](Params& c) { c.head_dim = 0; }));
    EXPECT_TRUE(refused([](Params& c) {
      c.position = LrpeType::kRotate;
      c.head_dim = 7;
    }));
    EXPECT_TRUE(refused([](Params& c) { c.k = nullptr; }));
    EXPECT_TRUE(refused([](Params& c) { c.states = nullptr; }));
    EXPECT_TRUE(refused([](Params& c) { c.slots = nullptr; }));
    EXPECT_TRUE(refused([](Params& c) { c.decay = nullptr; }));
  }
}

}  // namespace
}  // namespace recurve
