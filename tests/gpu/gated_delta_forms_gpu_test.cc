// The forms of the gated delta step, for few, some and many heads, against each
// other, bit for bit.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/common/device_attribute.h"
#include "kernels/linear_attn/gated_delta/gated_delta_few.h"
#include "kernels/linear_attn/gated_delta/gated_delta_step_cuda.h"
#include "tests/gpu/device_buffer.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

struct FormConfig {
  int64_t keys = 2, values = 4, dim = 128, width = 128;
  int64_t sequences = 0;  // 0: as few as are streamed
  int64_t gap = 4;        // elements after a row; odd: its pairs are unaligned
  int64_t conv = 4;       // width; 0: none
  bool conv_bias = true;
  bool norm = true;
  Activation activation = Activation::kSilu;
  DeltaDecay decay = DeltaDecay::kSoftplus;
  bool by_channel = false;
  ElementType type = ElementType::kBFloat16;
  ElementType out_type = ElementType::kBFloat16;
  bool early = true;
};

// The same few values again and again: states are large.
std::vector<float> Repeated(uint64_t seed, int64_t count) {
  const std::vector<float> some = RandomBFloat16Tensor(seed, 100003);
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = some[i % 100003];
  return values;
}

// Tokens of sequence b: none, one, two or nine. Some sequences, and a run of
// them, are in the sink.
int LengthOf(int64_t b) {
  return b % 7 == 3 ? 0 : b % 11 == 5 ? 9 : b % 13 == 7 ? 2 : 1;
}
bool InSink(int64_t b) { return b % 17 == 0 || (b >= 20 && b < 31); }

class StepForms {
 public:
  StepForms(const FormConfig& config, int64_t sequences)
      : c_(config),
        sequences_(sequences),
        channels_(2 * c_.keys * c_.dim + c_.values * c_.width),
        out_stride_(c_.values * c_.width + 8),
        state_size_(c_.values * c_.dim * c_.width),
        last_size_(std::max<int64_t>(c_.conv - 1, 0) * channels_ + 8) {
    // A row: q, k, v, z, a, b.
    const int64_t decays = c_.by_channel ? c_.values * c_.dim : c_.values;
    z_ = channels_;
    a_ = z_ + c_.values * c_.width;
    b_ = a_ + decays;
    const int64_t row = b_ + c_.values;
    stride_ = row + c_.gap;
    starts_ = {0};
    for (int64_t b = 0; b < sequences; ++b) {
      starts_.push_back(starts_.back() + LengthOf(b));
      // In no order, each once.
      slots_.push_back(InSink(b) ? 0 : static_cast<int32_t>(sequences - b));
    }
    const std::vector<float> values = Repeated(1, starts_.back() * row);
    rows_.assign(starts_.back() * stride_, kNaN);
    for (int64_t b = 0; b < sequences; ++b) {
      for (int64_t r = starts_[b]; r < starts_[b + 1] && !InSink(b); ++r) {
        std::copy_n(values.begin() + r * row, row, rows_.begin() + r * stride_);
      }
    }
    states_ = Repeated(2, (sequences + 1) * (state_size_ + 4));
    std::fill_n(states_.begin(), state_size_, kNaN);
    last_ = Repeated(3, (sequences + 1) * last_size_);
    std::fill_n(last_.begin(), last_size_, kNaN);
  }

  struct Result {
    std::vector<float> out, states, last;
  };
  // All sequences in a launch, or each alone; with `few_columns`, by the form
  // of few heads.
  void Run(bool together, Result* result, int few_columns = 0) const {
    DeviceTensor rows(c_.type, rows_), last(c_.type, last_);
    DeviceTensor out(c_.out_type,
                     std::vector<float>(starts_.back() * out_stride_, kCanary));
    DeviceBuffer<float> states(states_);
    DeviceBuffer<float> weight(RandomTensor(4, channels_ * 4));
    DeviceBuffer<float> bias(RandomTensor(5, channels_));
    DeviceBuffer<float> norm(RandomTensor(6, c_.width));
    DeviceBuffer<float> a_log(RandomTensor(7, c_.values));
    DeviceBuffer<float> a_bias(RandomTensor(8, c_.values * c_.dim));
    DeviceBuffer<int32_t> starts(starts_), slots(slots_);
    const auto at = [&](int64_t element) -> const void* {
      return static_cast<const char*>(rows.data()) +
             element * (c_.type == ElementType::kFloat32 ? 4 : 2);
    };
    GatedDeltaStepParams p = {};
    p.of.key_heads = c_.keys;
    p.of.value_heads = c_.values;
    p.of.head_dim = c_.dim;
    p.of.value_dim = c_.width;
    p.of.type = c_.type;
    p.of.q = at(0);
    p.of.k = at(c_.keys * c_.dim);
    p.of.v = at(2 * c_.keys * c_.dim);
    p.of.a = at(a_);
    p.of.b = at(b_);
    p.of.stride = p.of.a_stride = p.of.b_stride = stride_;
    p.of.out_type = c_.out_type;
    p.of.out = out.data();
    p.of.out_stride = out_stride_;
    p.of.gate.decay = c_.decay;
    p.of.gate.by_channel = c_.by_channel;
    p.of.gate.a_log = a_log.data();
    p.of.gate.bias = a_bias.data();
    p.of.gate.bound = -5.0f;
    p.of.gate.beta_scale = 1.0f;
    p.of.unit_eps = 1e-6f;
    p.of.scale = 1.0f / std::sqrt(static_cast<float>(c_.dim));
    p.of.states = states.data();
    p.of.slot_stride = state_size_ + 4;
    if (c_.conv > 0) {
      p.conv_weight = weight.data();
      p.conv_bias = c_.conv_bias ? bias.data() : nullptr;
      p.conv_width = c_.conv;
      p.conv_states = last.data();
      p.conv_slot_stride = last_size_;
    }
    if (c_.norm) {
      p.norm_weight = norm.data();
      p.norm_eps = 1e-6f;
      p.z = at(z_);
      p.z_stride = stride_;
      p.activation = c_.activation;
    }
    for (int64_t b = 0; b < (together ? 1 : sequences_); ++b) {
      p.of.sequences = together ? sequences_ : 1;
      p.of.query_start = starts.data() + b;
      p.of.slots = slots.data() + b;
      const bool early = c_.early && together;
      ASSERT_EQ(few_columns > 0
                    ? LaunchGatedDeltaFew(p, few_columns, early, nullptr)
                    : LaunchGatedDeltaStep(p, early, nullptr),
                cudaSuccess);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    *result = {out.Read(), states.Read(), last.Read()};
  }

 private:
  const FormConfig c_;
  const int64_t sequences_, channels_, out_stride_, state_size_, last_size_;
  int64_t z_, a_, b_, stride_;
  std::vector<int32_t> starts_, slots_;
  std::vector<float> rows_, states_, last_;
};

class GatedDeltaFormsGpuTest : public GpuTest {
 protected:
  static bool Streams(const FormConfig& c, int64_t sequences) {
    return DeltaStepStreams(c.keys, c.values, c.dim, c.width, sequences,
                            c.conv > 0, Multiprocessors());
  }
  static int Multiprocessors() {
    int count = 0;
    EXPECT_EQ(DeviceAttribute(cudaDevAttrMultiProcessorCount, &count),
              cudaSuccess);
    return count;
  }
  static void ExpectSameBits(const FormConfig& c) {
    int64_t sequences = c.sequences;
    if (sequences == 0) {
      while (sequences < 10000 && !Streams(c, sequences)) ++sequences;
    }
    SCOPED_TRACE(testing::Message()
                 << sequences << " sequences, " << c.keys << ", " << c.values
                 << " heads " << c.dim << " x " << c.width << ", conv "
                 << c.conv << ", norm " << c.norm << ", type "
                 << static_cast<int>(c.type));
    ASSERT_TRUE(Streams(c, sequences));
    ASSERT_FALSE(Streams(c, 1));
    ASSERT_EQ(FewColumns(c, sequences), 0);
    const StepForms step(c, sequences);
    StepForms::Result together, alone;
    ASSERT_NO_FATAL_FAILURE(step.Run(true, &together));
    ASSERT_NO_FATAL_FAILURE(step.Run(false, &alone));
    ExpectSame(together, alone);
  }

  static int FewColumns(const FormConfig& c, int64_t sequences) {
    return DeltaFewColumns(c.keys, c.values, c.dim, c.width, sequences, c.conv,
                           c.norm, c.by_channel);
  }
  // The form of few heads, alone and together, against that of a block a head,
  // wide and, where pairs are unaligned, narrow.
  static void ExpectFew(FormConfig c, int columns) {
    const int64_t few = kDeltaStepFewHeads / c.values;
    SCOPED_TRACE(testing::Message()
                 << c.keys << ", " << c.values << " heads, conv " << c.conv
                 << ", type " << static_cast<int>(c.type) << ", decay "
                 << static_cast<int>(c.decay));
    ASSERT_EQ(FewColumns(c, 1), columns);
    ASSERT_EQ(FewColumns(c, few), columns);
    ASSERT_EQ(FewColumns(c, few + 1), 0);
    ASSERT_FALSE(Streams(c, few + 1));
    StepForms::Result alone, narrow, together, wide;
    ASSERT_NO_FATAL_FAILURE(StepForms(c, few).Run(false, &alone, columns));
    ASSERT_NO_FATAL_FAILURE(StepForms(c, few).Run(true, &together));
    ExpectSame(together, alone);
    ASSERT_NO_FATAL_FAILURE(StepForms(c, few + 1).Run(false, &alone, columns));
    ASSERT_NO_FATAL_FAILURE(StepForms(c, few + 1).Run(true, &wide));
    ExpectSame(wide, alone);
    c.gap = 3;
    ASSERT_NO_FATAL_FAILURE(StepForms(c, few + 1).Run(false, &narrow));
    ExpectSame(narrow, alone);
  }

 private:
  static void ExpectSame(const StepForms::Result& a,
                         const StepForms::Result& b) {
    EXPECT_TRUE(SameBits(a.out, b.out)) << "outputs";
    EXPECT_TRUE(SameBits(a.states, b.states)) << "states";
    EXPECT_TRUE(SameBits(a.last, b.last)) << "last inputs";
  }
};

TEST_F(GatedDeltaFormsGpuTest, FewHeads) {
  for (ElementType type : {ElementType::kBFloat16, ElementType::kFloat32}) {
    for (const auto& [keys, values, columns] :
         {std::tuple(4, 4, 32), std::tuple(2, 4, 32), std::tuple(16, 32, 32),
          std::tuple(1, 3, 64), std::tuple(2, 8, 64)}) {
      FormConfig c;
      c.type = type;
      c.out_type = type;
      c.keys = keys;
      c.values = values;
      ExpectFew(c, columns);
      c.conv = 0;
      c.norm = false;
      ExpectFew(c, 32);
    }
  }
  for (DeltaDecay decay : {DeltaDecay::kLog, DeltaDecay::kSigmoid}) {
    FormConfig c;
    c.decay = decay;
    c.conv_bias = false;
    c.early = false;
    c.activation = Activation::kSigmoid;
    ExpectFew(c, 32);
  }
}

TEST_F(GatedDeltaFormsGpuTest, StreamsInEveryShape) {
  for (ElementType type : {ElementType::kBFloat16, ElementType::kFloat32}) {
    for (const auto& [keys, values] :
         {std::pair(4, 4), std::pair(2, 4), std::pair(1, 4), std::pair(3, 9),
          std::pair(1, 8)}) {
      FormConfig c;
      c.type = type;
      c.keys = keys;
      c.values = values;
      ExpectSameBits(c);
    }
    for (const auto& [dim, width] :
         {std::pair(128, 64 + 4), std::pair(96, 128), std::pair(128, 96),
          std::pair(64, 128), std::pair(101, 100), std::pair(127, 124)}) {
      FormConfig c;
      c.type = type;
      c.dim = dim;
      c.width = width;
      ExpectSameBits(c);
    }
  }
}

TEST_F(GatedDeltaFormsGpuTest, StreamsWithEveryOption) {
  for (int64_t conv : {0, 2, 3, 4}) {
    for (bool norm : {false, true}) {
      FormConfig c;
      c.conv = conv;
      c.norm = norm;
      c.conv_bias = norm;
      c.early = norm;
      c.activation = conv == 3 ? Activation::kSigmoid : Activation::kSilu;
      c.out_type = conv == 2 ? ElementType::kFloat32 : ElementType::kBFloat16;
      ExpectSameBits(c);
    }
  }
  for (DeltaDecay decay :
       {DeltaDecay::kLog, DeltaDecay::kSoftplus, DeltaDecay::kSigmoid}) {
    for (bool by_channel : {false, true}) {
      FormConfig c;
      c.decay = decay;
      c.by_channel = by_channel;
      c.dim = 120;
      ExpectSameBits(c);
    }
  }
}

// Groups of value heads at and next to multiples of the blocks.
TEST_F(GatedDeltaFormsGpuTest, StreamsAtEveryShareOfABlock) {
  const int64_t blocks = Multiprocessors();
  for (int64_t groups : {blocks - 1, blocks, 2 * blocks - 1, 2 * blocks}) {
    FormConfig c;
    c.keys = 1;
    c.values = 3;
    c.dim = 64;
    c.sequences = groups;
    if (groups < blocks) c.values = 4;
    ExpectSameBits(c);
  }
  for (int64_t groups : {3 * blocks, 3 * blocks + 1, 4 * blocks - 1}) {
    FormConfig c;
    c.keys = c.values = 1;
    c.dim = 64;
    c.sequences = groups;
    ExpectSameBits(c);
  }
}

}  // namespace
}  // namespace recurve
