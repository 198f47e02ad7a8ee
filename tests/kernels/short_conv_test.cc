#include "kernels/short_conv/short_conv.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

constexpr int64_t kConvGap = 3;  // elements after each row and slot

std::vector<uint16_t> ToHalves(const std::vector<float>& values) {
  std::vector<uint16_t> halves;
  for (float value : values) halves.push_back(FloatToBFloat16(value));
  return halves;
}

std::vector<float> ToFloats(const std::vector<uint16_t>& halves) {
  std::vector<float> values;
  for (uint16_t half : halves) values.push_back(BFloat16ToFloat(half));
  return values;
}

// One sequence: its inputs with the W − 1 before the first token in front, NaN
// after each row.
struct ConvTokens {
  ConvTokens(int64_t channels, int64_t width, int64_t length, uint64_t seed)
      : channels(channels),
        width(width),
        length(length),
        stride(channels + kConvGap),
        data(RandomBFloat16Tensor(seed, (length + width - 1) * stride)),
        weight(RandomTensor(seed + 1, channels * width)),
        bias(RandomTensor(seed + 2, channels)) {
    for (size_t i = 0; i < data.size(); ++i) {
      if (static_cast<int64_t>(i) % stride >= channels) data[i] = kNaN;
    }
  }

  // The W − 1 inputs before token t, dense.
  std::vector<float> StateAt(int64_t t) const {
    std::vector<float> state;
    for (int64_t i = 0; i + 1 < width; ++i) {
      const auto row = data.begin() + (t + i) * stride;
      state.insert(state.end(), row, row + channels);
    }
    return state;
  }

  std::vector<double> Oracle(bool biased) const {
    std::vector<double> out;
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t c = 0; c < channels; ++c) {
        double sum = biased ? bias[c] : 0.0;
        for (int64_t j = 0; j < width; ++j) {
          sum += double{weight[c * width + j]} * data[(t + j) * stride + c];
        }
        out.push_back(sum / (1.0 + std::exp(-sum)));
      }
    }
    return out;
  }

  int64_t channels, width, length, stride;
  std::vector<float> data;    // [W − 1 + length, stride]
  std::vector<float> weight;  // [C, W]
  std::vector<float> bias;    // [C]
};

// Outputs of the tokens, run in the given cuts; the state is checked after
// each.
std::vector<float> RunConv(const ConvTokens& t, ElementType type, bool biased,
                           const std::vector<int64_t>& cuts, int threads) {
  ThreadPool pool(threads);
  const bool wide = type == ElementType::kFloat32;
  const int64_t size = (t.width - 1) * t.channels;
  std::vector<float> states(3 * (size + kConvGap), kNaN);
  const std::vector<float> first = t.StateAt(0);
  std::copy(first.begin(), first.end(), states.begin() + size + kConvGap);
  std::vector<uint16_t> half_states = ToHalves(states);
  std::vector<float> result;
  int64_t done = 0;
  for (int64_t cut : cuts) {
    // The second sequence has no tokens, and keeps its slot.
    const int32_t starts[] = {0, static_cast<int32_t>(cut),
                              static_cast<int32_t>(cut)};
    const int32_t slots[] = {1, 2};
    const std::vector<float> x(
        t.data.begin() + (t.width - 1 + done) * t.stride,
        t.data.begin() + (t.width - 1 + done + cut) * t.stride);
    const std::vector<uint16_t> half_x = ToHalves(x);
    std::vector<float> y(cut * t.stride, kCanary);
    std::vector<uint16_t> half_y = ToHalves(y);
    ShortConvParams p = {};
    p.channels = t.channels;
    p.width = t.width;
    p.type = type;
    p.x = wide ? static_cast<const void*>(x.data()) : half_x.data();
    p.x_stride = p.y_stride = t.stride;
    p.y = wide ? static_cast<void*>(y.data()) : half_y.data();
    p.query_start = starts;
    p.sequences = 2;
    p.weight = t.weight.data();
    p.bias = biased ? t.bias.data() : nullptr;
    p.states = wide ? static_cast<void*>(states.data()) : half_states.data();
    p.slot_stride = size + kConvGap;
    p.slots = slots;
    ShortConv(p, pool);
    done += cut;
    const std::vector<float> got = wide ? y : ToFloats(half_y);
    for (int64_t row = 0; row < cut; ++row) {
      const auto begin = got.begin() + row * t.stride;
      result.insert(result.end(), begin, begin + t.channels);
      EXPECT_EQ(begin[t.channels],
                wide ? kCanary : BFloat16ToFloat(FloatToBFloat16(kCanary)));
    }
    const std::vector<float> now = wide ? states : ToFloats(half_states);
    const auto slot = now.begin() + size + kConvGap;
    EXPECT_TRUE(
        SameBits(std::vector<float>(slot, slot + size), t.StateAt(done)));
    EXPECT_TRUE(std::isnan(slot[size]) && std::isnan(now.back()));
  }
  return result;
}

TEST(ShortConvTest, MatchesFloat64) {
  for (int64_t width = kShortConvMinWidth; width <= kShortConvMaxWidth;
       ++width) {
    for (int64_t channels : {1, 5, 255, 256, 257, 600}) {
      for (int64_t length : {0, 1, 2, 3, 4, 9}) {
        for (bool biased : {false, true}) {
          SCOPED_TRACE(testing::Message() << width << " of " << channels
                                          << " channels, " << length);
          const ConvTokens tokens(channels, width, length, 7);
          EXPECT_TRUE(RelativelyNear(
              RunConv(tokens, ElementType::kFloat32, biased, {length}, 2),
              tokens.Oracle(biased), 1e-6));
        }
      }
    }
  }
}

TEST(ShortConvTest, CutsChangeNoBit) {
  for (ElementType type : {ElementType::kFloat32, ElementType::kBFloat16}) {
    for (int64_t width : {2, 3, 4}) {
      const ConvTokens tokens(300, width, 12, 8);
      const std::vector<float> want = RunConv(tokens, type, true, {12}, 1);
      EXPECT_TRUE(RelativelyNear(want, tokens.Oracle(true),
                                 type == ElementType::kFloat32 ? 1e-6 : 4e-3));
      EXPECT_TRUE(
          SameBits(RunConv(tokens, type, true, {1, 1, 0, 2, 5, 3}, 3), want));
    }
  }
}

}  // namespace
}  // namespace recurve
