// The gated delta rule on the GPU: the step and prompts by chunks against
// float64 and themselves, and the short convolution against the CPU's.

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/linear_attn/gated_delta/gated_delta_prefill_cuda.h"
#include "kernels/linear_attn/gated_delta/gated_delta_step_cuda.h"
#include "kernels/norm/norm.h"
#include "kernels/short_conv/short_conv.h"
#include "kernels/short_conv/short_conv_cuda.h"
#include "tests/gpu/device_buffer.h"
#include "tests/kernels/gated_delta_testing.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

constexpr ElementType kIoTypes[] = {ElementType::kFloat32,
                                    ElementType::kBFloat16};
constexpr int64_t kRowGap = 8;  // elements after each slot and output

// Outputs and states of sequences that share a config, a_log and bias.
struct DeltaGpuResult {
  std::vector<std::vector<float>> out;    // by sequence: [length, Hv, E]
  std::vector<std::vector<float>> state;  // by sequence: [Hv, D, E]
};

class DeltaGpuBatch {
 public:
  explicit DeltaGpuBatch(std::vector<const DeltaTokens*> sequences)
      : sequences_(std::move(sequences)),
        config_(sequences_[0]->config),
        slot_stride_(config_.state_elements() + kRowGap),
        done_(sequences_.size()) {
    states_.resize((2 * sequences_.size() + 2) * slot_stride_, kNaN);
    for (size_t b = 0; b < sequences_.size(); ++b) {
      std::copy(sequences_[b]->state.begin(), sequences_[b]->state.end(),
                states_.begin() + Slot(b) * slot_stride_);
    }
    result_.out.resize(sequences_.size());
  }

  // Positions of the first tokens; empty: 0.
  std::vector<int64_t> first;
  bool chunks = false;
  bool fresh = false;
  DeltaPrecision precision = DeltaPrecision::kFloat32;
  int64_t workspace_chunks = 1000;  // at most

  // Runs cut[b] more tokens of each sequence in one launch.
  void Run(const std::vector<int64_t>& cut) {
    const size_t count = sequences_.size();
    const int64_t stride = sequences_[0]->stride;
    const int64_t out_stride = config_.out_elements() + kRowGap;
    std::vector<float> rows;
    std::vector<int32_t> starts = {0}, slots, news;
    std::vector<int64_t> positions;
    for (size_t b = 0; b < count; ++b) {
      rows.insert(rows.end(), sequences_[b]->Row(done_[b]),
                  sequences_[b]->Row(done_[b] + cut[b]));
      starts.push_back(static_cast<int32_t>(rows.size() / stride));
      slots.push_back(static_cast<int32_t>(Slot(b)));
      positions.push_back((first.empty() ? 0 : first[b]) + done_[b]);
      news.push_back(fresh && done_[b] == 0 ? 1 : 0);
      done_[b] += cut[b];
    }
    // A last sequence in the sink, with a token of NaN.
    rows.resize(rows.size() + stride, kNaN);
    starts.push_back(starts.back() + 1);
    slots.push_back(0);
    positions.push_back(3);
    news.push_back(0);
    const int64_t total = starts.back();
    DeviceTensor in(config_.type, rows);
    DeviceBuffer<float> out(std::vector<float>(total * out_stride, kCanary));
    DeviceBuffer<float> states(states_);
    DeviceBuffer<int32_t> start(starts), slot(slots), fresh_of(news);
    DeviceBuffer<int64_t> position(positions);
    DeviceBuffer<float> a_log(sequences_[0]->a_log), bias(sequences_[0]->bias);
    GatedDeltaParams p = DeltaParams(*sequences_[0]);
    const int64_t size = config_.type == ElementType::kFloat32 ? 4 : 2;
    const auto at = [&](int64_t offset) -> const void* {
      return static_cast<const char*>(in.data()) + offset * size;
    };
    p.q = at(sequences_[0]->q);
    p.k = at(sequences_[0]->k);
    p.v = at(sequences_[0]->v);
    p.a = at(sequences_[0]->a);
    p.b = at(sequences_[0]->b);
    p.gate.a_log = a_log.data();
    p.gate.bias = config_.biased ? bias.data() : nullptr;
    p.out = out.data();
    p.out_stride = out_stride;
    p.query_start = start.data();
    p.sequences = static_cast<int64_t>(count) + 1;
    p.states = states.data();
    p.slot_stride = slot_stride_;
    p.slots = slot.data();
    if (chunks) {
      const int64_t bytes =
          std::min(workspace_chunks, total / 64 + 2 * p.sequences) *
          GatedDeltaPrefillWorkspace(64, 0, p.value_heads, p.value_dim,
                                     precision);
      DeviceBuffer<float> workspace(std::vector<float>(bytes / 4, kNaN));
      GatedDeltaPrefillParams q = {};
      q.of = p;
      q.tokens = total;
      q.positions = position.data();
      q.fresh = fresh ? fresh_of.data() : nullptr;
      q.precision = precision;
      q.workspace = workspace.data();
      q.workspace_bytes = bytes;
      ASSERT_EQ(LaunchGatedDeltaPrefill(q, nullptr), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    } else {
      GatedDeltaStepParams q = {};
      q.of = p;
      ASSERT_EQ(LaunchGatedDeltaStep(q, true, nullptr), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
    const std::vector<float> got = out.Read();
    std::vector<float> before = states_;
    states_ = states.Read();
    for (size_t b = 0; b <= count; ++b) {
      for (int32_t row = starts[b]; row < starts[b + 1]; ++row) {
        const auto begin = got.begin() + row * out_stride;
        if (b < count) {
          result_.out[b].insert(result_.out[b].end(), begin,
                                begin + config_.out_elements());
        } else {
          EXPECT_EQ(std::count(begin, begin + config_.out_elements(), 0.0f),
                    config_.out_elements())
              << "the sink's output";
        }
        EXPECT_EQ(begin[config_.out_elements()], kCanary);
      }
      if (b == count || cut[b] == 0) continue;
      std::copy_n(states_.begin() + Slot(b) * slot_stride_,
                  config_.state_elements(),
                  before.begin() + Slot(b) * slot_stride_);
    }
    EXPECT_TRUE(SameBits(states_, before)) << "another slot changed";
  }

  DeltaGpuResult Result() {
    result_.state.clear();
    for (size_t b = 0; b < sequences_.size(); ++b) {
      const auto begin = states_.begin() + Slot(b) * slot_stride_;
      result_.state.emplace_back(begin, begin + config_.state_elements());
    }
    return result_;
  }

 private:
  int64_t Slot(size_t b) const {
    return 2 * static_cast<int64_t>(sequences_.size() - b);
  }

  const std::vector<const DeltaTokens*> sequences_;
  const DeltaTestConfig config_;
  const int64_t slot_stride_;
  std::vector<int64_t> done_;
  std::vector<float> states_;
  DeltaGpuResult result_;
};

class GatedDeltaGpuTest : public GpuTest {
 protected:
  static void ExpectStep(const DeltaTestConfig& config, int64_t length) {
    const DeltaTokens tokens(config, length, 1);
    DeltaGpuBatch batch({&tokens});
    ASSERT_NO_FATAL_FAILURE(batch.Run({length}));
    const DeltaGpuResult got = batch.Result();
    DeltaOracle(tokens).Expect(got.out[0], got.state[0], 2e-5);
  }

  static void ExpectChunks(const DeltaTestConfig& config, int64_t length,
                           int64_t first, bool fresh,
                           DeltaPrecision precision) {
    SCOPED_TRACE(testing::Message()
                 << length << " tokens from " << first << " precision "
                 << static_cast<int>(precision));
    DeltaTokens tokens(config, length, 1);
    DeltaGpuBatch batch({&tokens});
    batch.chunks = true;
    batch.first = {first};
    batch.fresh = fresh;
    batch.precision = precision;
    ASSERT_NO_FATAL_FAILURE(batch.Run({length}));
    const DeltaGpuResult got = batch.Result();
    if (fresh && length > 0) {
      std::fill(tokens.state.begin(), tokens.state.end(), 0.0f);
    }
    DeltaOracle(tokens).Expect(
        got.out[0], got.state[0],
        precision == DeltaPrecision::kFloat32 ? 1e-4 : 2e-2);
  }
};

// {key heads, value heads, D, E}
DeltaTestConfig Shape(int64_t keys, int64_t values, int64_t d, int64_t e) {
  DeltaTestConfig config;
  config.key_heads = keys;
  config.value_heads = values;
  config.head_dim = d;
  config.value_dim = e;
  return config;
}

TEST_F(GatedDeltaGpuTest, StepInEveryShape) {
  for (const auto& [keys, values, d, e] :
       {std::tuple(1, 1, 1, 4), std::tuple(3, 3, 7, 60),
        std::tuple(1, 5, 64, 64), std::tuple(2, 6, 96, 192),
        std::tuple(1, 2, 100, 132), std::tuple(2, 4, 128, 128),
        std::tuple(1, 2, 256, 256)}) {
    for (ElementType type : kIoTypes) {
      for (bool by_channel : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << keys << ", " << values << " heads " << d << " x " << e
                     << ' ' << by_channel);
        DeltaTestConfig config = Shape(keys, values, d, e);
        config.type = type;
        config.by_channel = by_channel;
        for (int64_t length : {0, 1, 5}) ExpectStep(config, length);
      }
    }
  }
}

TEST_F(GatedDeltaGpuTest, EveryGate) {
  for (DeltaDecay decay :
       {DeltaDecay::kLog, DeltaDecay::kSoftplus, DeltaDecay::kSigmoid}) {
    for (DeltaTestGates gates :
         {DeltaTestGates::kUsual, DeltaTestGates::kOpen,
          DeltaTestGates::kForgetful, DeltaTestGates::kStill}) {
      for (bool by_channel : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << static_cast<int>(decay) << ' '
                     << static_cast<int>(gates) << ' ' << by_channel);
        DeltaTestConfig config;
        config.decay = decay;
        config.gates = gates;
        config.by_channel = by_channel;
        config.biased = !by_channel;
        config.beta_scale = by_channel ? 1.0f : 2.0f;
        ExpectStep(config, 40);
        ExpectChunks(config, 150, 10, false, DeltaPrecision::kFloat32);
      }
    }
  }
}

TEST_F(GatedDeltaGpuTest, StepsChangeNoBitWithTheBatch) {
  const DeltaTestConfig config = Shape(2, 4, 128, 128);
  const DeltaTokens tokens(config, 6, 3);
  const DeltaTokens other(config, 6, 4);
  DeltaGpuBatch alone({&tokens}), both({&other, &tokens});
  alone.Run({6});
  for (const auto& cut : {std::vector<int64_t>{0, 1}, {3, 2}, {1, 0}, {2, 3}}) {
    both.Run(cut);
  }
  EXPECT_TRUE(SameBits(both.Result().out[1], alone.Result().out[0]));
  EXPECT_TRUE(SameBits(both.Result().state[1], alone.Result().state[0]));
  // Enough heads for wide blocks.
  std::vector<const DeltaTokens*> sequences(33, &other);
  sequences[20] = &tokens;
  DeltaGpuBatch many(sequences);
  many.Run(std::vector<int64_t>(33, 6));
  EXPECT_TRUE(SameBits(many.Result().out[20], alone.Result().out[0]));
  EXPECT_TRUE(SameBits(many.Result().state[20], alone.Result().state[0]));
}

TEST_F(GatedDeltaGpuTest, ChunksAtEveryLength) {
  for (int64_t length : {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300}) {
    for (DeltaPrecision precision :
         {DeltaPrecision::kFloat32, DeltaPrecision::kBFloat16}) {
      const DeltaTestConfig config = Shape(2, 4, 128, 128);
      ExpectChunks(config, length, 0, true, precision);
      ExpectChunks(config, length, 50, false, precision);
    }
  }
}

TEST_F(GatedDeltaGpuTest, ChunksInEveryShape) {
  for (const auto& [keys, values, d, e] :
       {std::tuple(1, 1, 8, 8), std::tuple(3, 3, 24, 40),
        std::tuple(1, 5, 64, 64), std::tuple(2, 6, 96, 192),
        std::tuple(1, 2, 128, 256)}) {
    for (bool by_channel : {false, true}) {
      SCOPED_TRACE(testing::Message() << keys << ", " << values << " heads "
                                      << d << " x " << e << ' ' << by_channel);
      DeltaTestConfig config = Shape(keys, values, d, e);
      config.by_channel = by_channel;
      ExpectChunks(config, 200, 64, false, DeltaPrecision::kFloat32);
      ExpectChunks(config, 200, 64, false, DeltaPrecision::kBFloat16);
      config.type = ElementType::kBFloat16;
      ExpectChunks(config, 200, 64, false, DeltaPrecision::kBFloat16);
    }
  }
}

// Cut at multiples of the chunk, with others in the batch, in rounds.
TEST_F(GatedDeltaGpuTest, ChunksChangeNoBitWithCutsAndBatch) {
  for (DeltaPrecision precision :
       {DeltaPrecision::kFloat32, DeltaPrecision::kBFloat16}) {
    const DeltaTestConfig config = Shape(1, 2, 128, 128);
    const DeltaTokens tokens(config, 500, 3);
    const DeltaTokens other(config, 500, 4);
    DeltaGpuBatch alone({&tokens}), both({&other, &tokens}), rounds({&tokens});
    alone.first = rounds.first = {30};
    both.first = {0, 30};
    for (DeltaGpuBatch* batch : {&alone, &both, &rounds}) {
      batch->chunks = true;
      batch->fresh = true;
      batch->precision = precision;
    }
    alone.Run({500});
    for (const auto& cut :
         {std::vector<int64_t>{100, 34}, {7, 0}, {200, 128}, {193, 338}}) {
      both.Run(cut);
    }
    rounds.workspace_chunks = 5;  // for two sequences
    rounds.Run({500});
    EXPECT_TRUE(SameBits(both.Result().out[1], alone.Result().out[0]));
    EXPECT_TRUE(SameBits(both.Result().state[1], alone.Result().state[0]));
    EXPECT_TRUE(SameBits(rounds.Result().out[0], alone.Result().out[0]));
    EXPECT_TRUE(SameBits(rounds.Result().state[0], alone.Result().state[0]));
  }
}

TEST_F(GatedDeltaGpuTest, RefusesWhatItDoesNotDo) {
  GatedDeltaStepParams step = {};
  step.of.key_heads = 2;
  step.of.value_heads = 3;
  step.of.head_dim = step.of.value_dim = 64;
  EXPECT_EQ(LaunchGatedDeltaStep(step, true, nullptr), cudaErrorInvalidValue);
  GatedDeltaPrefillParams prompts = {};
  prompts.of = step.of;
  prompts.of.value_heads = 4;
  prompts.of.value_dim = 60;
  EXPECT_EQ(LaunchGatedDeltaPrefill(prompts, nullptr), cudaErrorInvalidValue);
}

// The step with its convolution and norm against the CPU's three operations.
void ExpectFused(int64_t keys, int64_t values, int64_t d, int64_t e,
                 ElementType type, Activation activation, int64_t width) {
  SCOPED_TRACE(testing::Message() << keys << ", " << values << " heads " << d
                                  << " x " << e << " width " << width);
  constexpr int64_t kTokens = 5;
  DeltaTestConfig config = Shape(keys, values, d, e);
  config.type = type;
  const DeltaTokens tokens(config, kTokens, 5);
  const int64_t channels = 2 * keys * d + values * e;
  const int64_t out = values * e;
  const int64_t size = (width - 1) * channels;
  const std::vector<float> weight = RandomTensor(6, channels * width);
  const std::vector<float> bias = RandomTensor(7, channels);
  const std::vector<float> norm = RandomTensor(8, e);
  const std::vector<float> z = RandomBFloat16Tensor(9, kTokens * out);
  // Slot 1; slot 0 may not be read.
  std::vector<float> last(2 * size, kNaN), states(2 * config.state_elements());
  const std::vector<float> first = RandomBFloat16Tensor(10, size);
  std::copy(first.begin(), first.end(), last.begin() + size);
  std::copy(tokens.state.begin(), tokens.state.end(),
            states.begin() + config.state_elements());
  DeviceTensor in(type, tokens.data), z_in(type, z), last_in(type, last);
  DeviceBuffer<float> states_in(states), weight_in(weight), bias_in(bias),
      norm_in(norm), a_log(tokens.a_log), dt_bias(tokens.bias);
  DeviceBuffer<float> y(std::vector<float>(kTokens * out, kCanary));
  DeviceBuffer<int32_t> starts({0, 1, kTokens}), slots({1, 1});

  ThreadPool pool(2);
  const int32_t start[] = {0, kTokens}, slot[] = {1};
  std::vector<float> mixed(kTokens * channels), want(kTokens * out);
  ShortConvParams conv = {};
  conv.channels = channels;
  conv.width = width;
  conv.x = tokens.data.data();
  conv.x_stride = tokens.stride;
  conv.y = mixed.data();
  conv.y_stride = channels;
  conv.query_start = start;
  conv.sequences = 1;
  conv.weight = weight.data();
  conv.bias = bias.data();
  conv.states = last.data();
  conv.slot_stride = size;
  conv.slots = slot;
  ShortConv(conv, pool);
  GatedDeltaParams delta = DeltaParams(tokens);
  delta.type = ElementType::kFloat32;
  delta.q = mixed.data();
  delta.k = mixed.data() + keys * d;
  delta.v = mixed.data() + 2 * keys * d;
  delta.stride = channels;
  delta.a = tokens.data.data() + tokens.a;
  delta.b = tokens.data.data() + tokens.b;
  delta.out = want.data();
  delta.out_stride = out;
  delta.query_start = start;
  delta.sequences = 1;
  delta.states = states.data();
  delta.slot_stride = config.state_elements();
  delta.slots = slot;
  GatedDelta(delta, pool);
  GatedNormParams gated = {};
  gated.norm = {want.data(),      e, norm.data(), want.data(), e,
                kTokens * values, e, 1,           1e-6f};
  gated.gate = z.data();
  gated.gate_stride = e;
  gated.activation = activation;
  gated.gate_after_norm = true;
  GatedNorm(gated, pool);

  const auto offset = [&](int64_t elements) -> const void* {
    return static_cast<const char*>(in.data()) +
           elements * (type == ElementType::kFloat32 ? 4 : 2);
  };
  GatedDeltaStepParams p = {};
  p.of = DeltaParams(tokens);
  p.of.gate.a_log = a_log.data();
  p.of.gate.bias = dt_bias.data();
  p.of.q = offset(tokens.q);
  p.of.k = offset(tokens.k);
  p.of.v = offset(tokens.v);
  p.of.a = offset(tokens.a);
  p.of.b = offset(tokens.b);
  p.of.out = y.data();
  p.of.out_stride = out;
  p.of.query_start = starts.data();
  p.of.sequences = 1;
  p.of.states = states_in.data();
  p.of.slot_stride = config.state_elements();
  p.of.slots = slots.data();
  p.conv_weight = weight_in.data();
  p.conv_bias = bias_in.data();
  p.conv_width = width;
  p.conv_states = last_in.data();
  p.conv_slot_stride = size;
  p.norm_weight = norm_in.data();
  p.norm_eps = 1e-6f;
  p.z = z_in.data();
  p.z_stride = out;
  p.activation = activation;
  // The first token, then the others.
  for (int launch : {0, 1}) {
    p.of.query_start = starts.data() + launch;
    ASSERT_EQ(LaunchGatedDeltaStep(p, launch == 0, nullptr), cudaSuccess);
  }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<float> got = y.Read();
  for (int64_t t = 0; t < kTokens; ++t) {
    const std::vector<double> row(want.begin() + t * out,
                                  want.begin() + (t + 1) * out);
    EXPECT_TRUE(RelativelyNear({got.data() + t * out, size_t(out)}, row, 1e-4))
        << "token " << t;
  }
  const std::vector<double> want_state(states.begin() + config.state_elements(),
                                       states.end());
  const std::vector<float> got_states = states_in.Read();
  EXPECT_TRUE(RelativelyNear(
      {got_states.data() + config.state_elements(), want_state.size()},
      want_state, 1e-5));
  const std::vector<float> got_last = last_in.Read();
  EXPECT_TRUE(SameBits({got_last.data() + size, size_t(size)},
                       {last.data() + size, size_t(size)}));
}

TEST_F(GatedDeltaGpuTest, FusedStepMatchesTheOperations) {
  for (ElementType type : kIoTypes) {
    ExpectFused(2, 4, 128, 128, type, Activation::kSilu, 4);
    ExpectFused(1, 3, 64, 100, type, Activation::kSigmoid, 2);
    ExpectFused(2, 2, 96, 192, type, Activation::kSilu, 3);
    ExpectFused(1, 1, 16, 32, type, Activation::kSilu, 4);
    ExpectFused(1, 4, 128, 128, type, Activation::kSilu, 4);
    // Wide blocks, since narrow ones would be too large a cluster.
    ExpectFused(1, 5, 128, 128, type, Activation::kSilu, 4);
    ExpectFused(1, 4, 96, 192, type, Activation::kSilu, 3);
    ExpectFused(1, 8, 40, 100, type, Activation::kSigmoid, 2);
  }
}

TEST_F(GatedDeltaGpuTest, ShortConvMatchesTheCpu) {
  // Sequences that begin at, before and after the ends of blocks' runs.
  const std::vector<int32_t> kStarts[] = {{0, 1, 1, 3, 70, 200, 202},
                                          {0, 31, 62, 63, 94, 160, 161},
                                          {0, 30, 33, 66, 127, 129, 190},
                                          {0, 1, 2, 3, 7, 8, 9},
                                          {0, 2, 5, 6, 6, 14, 19}};
  for (ElementType type : kIoTypes) {
    for (const std::vector<int32_t>& starts : kStarts) {
      for (int64_t width : {2, 3, 4}) {
        for (int64_t channels : {8, 1040}) {
          const int64_t size = (width - 1) * channels;
          const std::vector<int32_t> slots = {3, 2, 5, 1, 4, 6};
          const int64_t rows = starts.back();
          const std::vector<float> x = RandomBFloat16Tensor(1, rows * channels);
          const std::vector<float> weight = RandomTensor(2, channels * width);
          const std::vector<float> bias = RandomTensor(3, channels);
          std::vector<float> states = RandomBFloat16Tensor(4, 7 * size);
          std::fill_n(states.begin(), size, kNaN);
          DeviceTensor x_in(type, x), states_in(type, states),
              y_out(type, std::vector<float>(rows * channels, kCanary));
          DeviceBuffer<int32_t> start(starts), slot(slots);
          DeviceBuffer<float> weight_in(weight), bias_in(bias);
          CudaShortConvParams p = {};
          p.of.channels = channels;
          p.of.width = width;
          p.of.x_stride = p.of.y_stride = channels;
          p.of.sequences = 6;
          p.of.slot_stride = size;
          p.rows = rows + 5;  // more than there are
          ShortConvParams cpu = p.of;
          p.of.type = type;
          p.of.x = x_in.data();
          p.of.y = y_out.data();
          p.of.query_start = start.data();
          p.of.weight = weight_in.data();
          p.of.bias = bias_in.data();
          p.of.states = states_in.data();
          p.of.slots = slot.data();
          ASSERT_EQ(LaunchShortConv(p, nullptr), cudaSuccess);
          ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
          std::vector<float> y(rows * channels);
          cpu.x = x.data();
          cpu.y = y.data();
          cpu.query_start = starts.data();
          cpu.weight = weight.data();
          cpu.bias = bias.data();
          cpu.states = states.data();
          cpu.slots = slots.data();
          ThreadPool pool(2);
          ShortConv(cpu, pool);
          EXPECT_TRUE(RelativelyNear(y_out.Read(),
                                     std::vector<double>(y.begin(), y.end()),
                                     RoundingOf(type)));
          EXPECT_TRUE(SameBits(states_in.Read(), states));
        }
      }
    }
  }
}

}  // namespace
}  // namespace recurve
